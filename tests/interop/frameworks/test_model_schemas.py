"""LangChain's converter takes each schema that a model gets from us."""

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from ...supervisor.tools.test_model_schema import KEYWORDS, SCHEMAS, made


@given(st.dictionaries(KEYWORDS, SCHEMAS, max_size=6))
def test_whatever_a_server_declares_is_converted(declared):
    """T19."""
    schema = made(declared).as_dict()
    tool = StructuredTool(name="a", description="b", args_schema=schema, func=print)
    assert convert_to_openai_tool(tool)["function"]["name"] == "a"

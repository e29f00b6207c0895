"""Tables: mappings of which a changed version costs little."""

from hypothesis import given
from hypothesis import strategies as st

from mcp_nursery.supervisor.catalogue.persistent_map import Table

keys = st.one_of(st.integers(0, 1000), st.text(max_size=3), st.tuples(st.text(max_size=2), st.text(max_size=2)))
changes = st.lists(st.tuples(st.lists(keys), st.dictionaries(keys, st.integers())), max_size=8)


@given(st.dictionaries(keys, st.integers()), changes, keys)
def test_every_version_is_the_mapping_that_its_changes_make(first, then, other):
    """Also after later versions were made from it."""
    versions = [(Table(first.items()), first)]
    for gone, come in then:
        table, known = versions[-1]
        kept = {key: value for key, value in known.items() if key not in gone}
        versions.append((table.exchange(gone, come.items()), kept | come))
    for table, known in versions:
        assert table == known
        assert len(table) == len(known)
        assert dict(table) == known
        assert (table.get(other), table.get(other, "none")) == (known.get(other), known.get(other, "none"))
        assert (other in table) is (other in known)

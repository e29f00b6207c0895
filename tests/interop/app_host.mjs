// A host with one tool's page in a frame, for what a page asks of its server: the bridge is that of the official SDK.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import {
  AppBridge,
  PostMessageTransport,
  RESOURCE_MIME_TYPE,
  getToolUiResourceUri,
  isToolVisibilityAppOnly,
} from '@modelcontextprotocol/ext-apps/app-bridge';

const info = { name: 'host', version: '1' };
const extensions = { 'io.modelcontextprotocol/ui': { mimeTypes: [RESOURCE_MIME_TYPE] } };
const client = new Client(info, { capabilities: { extensions } });
await client.connect(new StreamableHTTPClientTransport(new URL('/mcp', location.href)));
const { tools } = await client.listTools();
const tool = tools.find((each) => getToolUiResourceUri(each) && !isToolVisibilityAppOnly(each));
const uri = getToolUiResourceUri(tool);
const { contents } = await client.readResource({ uri });
const result = await client.callTool({ name: tool.name, arguments: {} });
window.seen = { tools: tools.map((each) => each.name), uri, mimeType: contents[0].mimeType, said: [] };

const frame = document.createElement('iframe');
frame.sandbox = 'allow-scripts';
frame.style = 'position: fixed; inset: 0; width: 100%; height: 100%; border: 0';
document.body.append(frame);
const bridge = new AppBridge(client, info, { serverTools: {}, message: { text: {} } });
bridge.oninitialized = () => {
  bridge.sendToolInput({ arguments: {} });
  bridge.sendToolResult(result);
};
bridge.onmessage = async ({ content }) => {
  window.seen.said.push(content[0].text);
  return {};
};
await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
frame.srcdoc = contents[0].text;

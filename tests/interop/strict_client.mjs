// A client of the TypeScript SDK that lists the tools of a gateway over stdio, and calls one.
//
// Arguments: the SDK as in `client_libraries.mjs`, the command of the gateway as a JSON list, the name of the tool. Written: the
// names of all tools, the definition of the tool, and the result, as JSON. The packages are looked for beside this file.

const [library, commandAsJson, name] = process.argv.slice(2);
const [command, ...args] = JSON.parse(commandAsJson);

async function connected() {
    const about = { name: 'typescript', version: '1' };
    if (library === 'typescript_1') {
        const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
        const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
        const client = new Client(about);
        await client.connect(new StdioClientTransport({ command, args }));
        return client;
    }
    const { Client } = await import('@modelcontextprotocol/client');
    const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
    const client = new Client(about, { versionNegotiation: { mode: library === 'typescript_2' ? 'auto' : 'legacy' } });
    await client.connect(new StdioClientTransport({ command, args }));
    return client;
}

const client = await connected();
const { tools } = await client.listTools();
const result = await client.callTool({ name, arguments: { a: 1 } });
await client.close();
process.stdout.write(JSON.stringify({ names: tools.map(tool => tool.name), tool: tools.find(tool => tool.name === name), result }));

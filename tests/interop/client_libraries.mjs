// The clients of the TypeScript SDK, one session of each, as `client_libraries.py` has those in Python.
//
// Arguments and what is written are the same. The packages are looked for beside this file.

const REST = 100; // milliseconds between two looks at what another process does

const [library, targetAsJson, announced] = process.argv.slice(2);
const target = JSON.parse(targetAsJson);
const about = { name: 'typescript', version: '1' };

async function typescript1() {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    return { client: new Client(about), StdioClientTransport, StreamableHTTPClientTransport };
}

async function typescript2() {
    const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
    const { StdioClientTransport } = await import('@modelcontextprotocol/client/stdio');
    const client = new Client(about, { versionNegotiation: { mode: 'auto' } });
    return { client, StdioClientTransport, StreamableHTTPClientTransport };
}

async function connected() {
    const made = await { typescript_1: typescript1, typescript_2: typescript2 }[library]();
    const transport =
        typeof target === 'string'
            ? new made.StreamableHTTPClientTransport(new URL(target))
            : new made.StdioClientTransport({ command: target[0], args: target.slice(1) });
    await made.client.connect(transport);
    return made.client;
}

const rest = () => new Promise(resolve => setTimeout(resolve, REST));
const names = async client => (await client.listTools()).tools.map(tool => tool.name).sort();
const call = async (client, name, said = {}) => (await client.callTool({ name, arguments: said })).content[0].text;

const client = await connected();
const said = { first: await names(client), answers: [] };
const pid = said.first.find(name => name.endsWith('pid'));
const before = await call(client, pid);
process.kill(Number(before), 'SIGKILL');
let after = await call(client, pid);
while (!/^\d+$/.test(after) || after === before) {
    said.answers.push(after);
    await rest();
    after = await call(client, pid);
}
said.learned = await call(client, pid.replace(/pid$/, 'learn'), { announced: announced === 'announced' });
said.last = await names(client);
while (!said.last.includes(pid.replace(/pid$/, 'learned'))) {
    await rest();
    said.last = await names(client);
}
await client.close();
process.stdout.write(JSON.stringify(said));

// The script of a page: it says what its host sends, and calls a tool by the name that its server has for it.
import { App } from '@modelcontextprotocol/ext-apps';

const app = new App({ name: 'view', version: '1' }, {});
const say = (text) => app.sendMessage({ role: 'user', content: [{ type: 'text', text }] });
const call = (name) => app.callServerTool({ name, arguments: {} });
const text = async (answer) => (await answer).content[0].text;
app.ontoolresult = ({ content }) => say(`shown: ${content[0].text}`);
document.querySelector('button').addEventListener('click', async () => {
  await say(`called: ${await text(call('refresh'))}`);
  await say(await text(call('nothing')).catch((error) => `refused: ${error.message}`));
});
await app.connect();

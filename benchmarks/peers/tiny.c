/* The smallest stdio MCP server there is, to have a thousand of: it knows the words it looks for and no JSON.
   Arguments: how many tools it has (1), how many milliseconds it takes to start (0), and whether it is stubborn (0): it
   then ends neither with its input nor at SIGTERM, but after five minutes. A tool's call is answered with a text, a
   call of `mute` never. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char line[1 << 20];

static void answer(const char *id, int tools) {
    if (strstr(line, "\"server/discover\"")) {
        printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"resultType\":\"complete\",\"supportedVersions\":"
               "[\"2026-07-28\"],\"capabilities\":{\"tools\":{}},\"_meta\":{\"io.modelcontextprotocol/serverInfo\":"
               "{\"name\":\"tiny\",\"version\":\"1\"}},\"ttlMs\":0,\"cacheScope\":\"private\"}}\n", id);
    } else if (strstr(line, "\"tools/list\"")) {
        printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":"
               "\"private\",\"tools\":[{\"name\":\"mute\",\"inputSchema\":{\"type\":\"object\"}}", id);
        for (int n = 0; n < tools; n++)
            printf(",{\"name\":\"echo_%d\",\"description\":\"Say it again.\",\"inputSchema\":{\"type\":\"object\"}}", n);
        printf("]}}\n");
    } else if (!strstr(line, "\"mute\"")) {
        printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"resultType\":\"complete\",\"content\":[{\"type\":\"text\","
               "\"text\":\"here\"}]}}\n", id);
    }
    fflush(stdout);
}

int main(int count, char **arguments) {
    int tools = count > 1 ? atoi(arguments[1]) : 1;
    int stubborn = count > 3 && atoi(arguments[3]);
    if (stubborn) {
        alarm(300);
        signal(SIGTERM, SIG_IGN);
    }
    usleep(1000 * (count > 2 ? atoi(arguments[2]) : 0));
    while (fgets(line, sizeof line, stdin)) {
        char *id = strstr(line, "\"id\":");
        if (!id || !strstr(line, "\"method\"")) continue;
        id += 5;
        char copy[64] = {0};
        strncpy(copy, id, strcspn(id, ",}") < 63 ? strcspn(id, ",}") : 63);
        answer(copy, tools);
    }
    while (stubborn) pause();
    return 0;
}

"""Five hundred tools of twenty-five servers, much alike, and what models look for among them."""

from mcp_types import Tool as Definition
from mcp_types import ToolAnnotations

from mcp_nursery.supervisor.tools.naming import public_names
from mcp_nursery.supervisor.tools.tool import Tool

SERVICES = {
    "github": {"issue": "repo", "pull_request": "repo", "release": "repo", "workflow_run": "repo"},
    "gitlab": {"merge_request": "project", "issue": "project", "pipeline": "project", "snippet": "project"},
    "jira": {"issue": "project", "sprint": "board", "worklog": "issue", "component": "project"},
    "linear": {"issue": "team", "cycle": "team", "document": "project", "label": "team"},
    "slack": {"message": "channel", "reminder": "user", "bookmark": "channel", "userGroup": "workspace"},
    "gmail": {"draft": "mailbox", "label": "mailbox", "filter": "mailbox", "thread": "mailbox"},
    "calendar": {"event": "calendar", "attendee": "event", "calendar": "account", "holiday": "calendar"},
    "drive": {"file": "folder", "folder": "drive", "permission": "file", "comment": "file"},
    "notion": {"page": "workspace", "database": "workspace", "block": "page", "comment": "page"},
    "postgres": {"table": "schema", "index": "table", "view": "schema", "role": "cluster"},
    "mongodb": {"collection": "database", "document": "collection", "index": "collection", "user": "database"},
    "redis": {"key": "database", "stream": "database", "hashField": "key", "sortedSet": "database"},
    "stripe": {"customer": "account", "invoice": "customer", "refund": "charge", "subscription": "customer"},
    "shopify": {"product": "store", "order": "store", "discount": "store", "inventoryLevel": "location"},
    "s3": {"bucket": "region", "object": "bucket", "lifecycleRule": "bucket", "accessPoint": "bucket"},
    "kubernetes": {"pod": "namespace", "deployment": "namespace", "configMap": "namespace", "ingress": "namespace"},
    "docker": {"container": "host", "image": "registry", "volume": "host", "network": "host"},
    "grafana": {"dashboard": "folder", "alertRule": "folder", "dataSource": "organization", "annotation": "dashboard"},
    "sentry": {"issue": "project", "release": "organization", "alert": "project", "team": "organization"},
    "datadog": {"monitor": "account", "dashboard": "account", "incident": "account", "downtime": "monitor"},
    "hubspot": {"contact": "portal", "company": "portal", "deal": "pipeline", "ticket": "pipeline"},
    "zendesk": {"ticket": "queue", "macro": "account", "article": "help center", "organization": "account"},
    "spotify": {"playlist": "user", "track": "playlist", "album": "library", "device": "user"},
    "trello": {"card": "list", "board": "workspace", "checklist": "card", "member": "board"},
    "cloudflare": {"zone": "account", "dnsRecord": "zone", "worker": "account", "firewallRule": "zone"},
}
"""What there is of each, and in what that is."""

VERBS = {
    "list": "Returns the {thing}s of a {place}, page by page.",
    "get": "Returns one {thing} with all its fields.",
    "create": "Adds a new {thing} to a {place}.",
    "update": "Changes fields of a {thing}.",
    "delete": "Removes a {thing} from its {place} for good.",
}

WANTED = {
    "open a pull request on GitHub": "github/create_pull_request",
    "github pull requests": "github/list_pull_request",
    "GitLab merge requests of a project": "gitlab/list_merge_request",
    "retry or look at a gitlab pipeline": "gitlab/get_pipeline",
    "new jira issue": "jira/create_issue",
    "jira sprints on the board": "jira/list_sprint",
    "log work time jira worklog": "jira/create_worklog",
    "delete a linear label": "linear/delete_label",
    "message to a slack channel": "slack/createMessage",
    "remind user slack": "slack/createReminder",
    "create an email draft in gmail": "gmail/create_draft",
    "calendar events next week": "calendar/list_event",
    "add attendee to the event": "calendar/create_attendee",
    "share a drive file: create permission": "drive/create_permission",
    "files in a google drive folder": "drive/list_file",
    "comment on a notion page": "notion/create_comment",
    "list tables in postgres": "postgres/list_table",
    "drop or delete index postgres": "postgres/delete_index",
    "insert documents into a mongodb collection": "mongodb/create_document",
    "get redis key": "redis/getKey",
    "refund stripe charge": "stripe/create_refund",
    "customer's subscriptions": "stripe/list_subscription",
    "change inventory level": "shopify/updateInventoryLevel",
    "s3 buckets in a region": "s3/listBucket",
    "bucket lifecycle rules": "s3/listLifecycleRule",
    "which pods are in the namespace": "kubernetes/listPod",
    "kubernetes config map update": "kubernetes/updateConfigMap",
    "docker containers": "docker/list_container",
    "grafana alert rules": "grafana/listAlertRule",
    "unresolved sentry issues": "sentry/list_issue",
    "mute a datadog monitor with a downtime": "datadog/create_downtime",
    "hubspot deals in the pipeline": "hubspot/list_deal",
    "zendesk help center article": "zendesk/get_article",
    "tracks of a playlist": "spotify/list_track",
    "move a trello card": "trello/update_card",
    "add DNS record": "cloudflare/createDnsRecord",
    "cloudflare firewall": "cloudflare/listFirewallRule",
}
"""What is looked for, and the server and tool that are meant."""


def declared(name, description, properties=(), **more):
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": said} for key, said in properties},
    }
    return Definition(name=name, description=description, input_schema=schema, **more)


def named(server, definition, **more):
    names = public_names(server, [definition.name], [*SERVICES, server])
    return Tool(names[definition.name], server, definition.name, definition, available=True, trusted_hints=True, **more)


def _tool_name(service, verb, thing):
    if any(each != each.lower() for each in SERVICES[service]) or service == "s3":
        return f"{verb}{thing[0].upper()}{thing[1:]}"
    return f"{verb}_{thing}"


def _words(thing):
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in thing).replace("_", " ")


def five_hundred():
    """All of them."""
    for service, things in SERVICES.items():
        for thing, place in things.items():
            said = _words(thing)
            for verb, sentence in VERBS.items():
                arguments = [(f"{place}_id", f"The {place} in which the {said} is.")]
                if verb == "list":
                    arguments += [("page", "Which page, from 1."), ("per_page", "How many on a page.")]
                if verb in ("get", "update", "delete"):
                    arguments += [(f"{said.replace(' ', '_')}_id", f"Which {said}.")]
                if verb in ("create", "update"):
                    arguments += [
                        ("title", "What it is called."),
                        ("body", "What it holds."),
                        ("labels", "Its labels."),
                    ]
                name = _tool_name(service, verb, thing)
                hints = ToolAnnotations(title=f"{verb.capitalize()} {said}")
                yield named(
                    service, declared(name, sentence.format(thing=said, place=place), arguments, annotations=hints)
                )

"""The patterns of secrets: data, nothing else.

All of them are linear in any text: no pattern needs anything behind an unbounded run, so a run that was read is also
replaced, and a match that fails does so after a bounded number of characters.
"""

from typing import Final

KNOWN_KEYS: Final = (
    # Cloud
    ("aws-access-key", r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"),
    ("aws-bedrock-key", r"ABSK[A-Za-z0-9+/]{40,}={0,2}"),
    ("aws-secret-key", r"[Ss](?i:ecret_?access_?key)[\"'\s:=>]{1,8}[A-Za-z0-9/+=]{40,}"),
    ("google-api-key", r"(?:AIza[A-Za-z0-9_-]{35,}|AQ\.[A-Za-z0-9_-]{40,})"),
    ("google-oauth", r"(?:ya29\.|GOCSPX-|1//0)[A-Za-z0-9_-]{20,}"),
    ("azure-key", r"(?:Account|SharedAccess)Key\s{0,4}=\s{0,4}[A-Za-z0-9+/%=]{16,}"),
    ("azure-sas", r"sig=[A-Za-z0-9%+/]{20,}=*"),
    ("azure-service-key", r"[A-Za-z0-9]{52}JQQJ9[A-Za-z0-9]{27,}"),
    ("azure-client-secret", r"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,}"),
    ("digitalocean-token", r"do[opr]_v1_[a-f0-9]{64}"),
    ("alibaba-key", r"LTAI[A-Za-z0-9]{12,}"),
    ("heroku-key", r"HRKU-[A-Za-z0-9_-]{30,}"),
    ("vault-token", r"hv[sbr]\.[A-Za-z0-9_-]{24,}"),
    ("terraform-token", r"atlasv1\.[A-Za-z0-9_=-]{40,}"),
    ("databricks-token", r"dapi[a-f0-9]{32}"),
    ("supabase-key", r"sb(?:p|_secret)_[A-Za-z0-9_-]{20,}"),
    ("cloudflare-key", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{100,}"),
    ("fly-token", r"fm(?:1[ar]|2)_[A-Za-z0-9+/=_-]{60,}"),
    ("netlify-token", r"nfp_[A-Za-z0-9]{36,}"),
    ("planetscale-token", r"pscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.=-]{32,}"),
    ("pulumi-token", r"pul-[a-f0-9]{40}"),
    ("doppler-token", r"dp\.[a-z]{2,8}\.[A-Za-z0-9]{40,}"),
    # Forges
    ("github-token", r"gh[opusr]_[A-Za-z0-9]{20,}"),
    ("github-fine-grained-token", r"github_pat_[A-Za-z0-9_]{20,}"),
    (
        "gitlab-token",
        r"(?:gl(?:pat|dt|rtr?|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-[A-Za-z0-9_.-]{16,}|GR1348941[A-Za-z0-9_-]{20,})",
    ),
    ("bitbucket-token", r"ATBB[A-Za-z0-9=_-]{24,}"),
    ("sourcegraph-token", r"sgp_[A-Za-z0-9_]{40,}"),
    ("atlassian-token", r"ATATT3[A-Za-z0-9=_-]{24,}"),
    # Model vendors
    ("anthropic-key", r"sk-ant-[A-Za-z0-9_-]{16,}"),
    ("openrouter-key", r"sk-or-[A-Za-z0-9_-]{20,}"),
    ("openai-key", r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{16,}"),
    ("cerebras-key", r"csk-[a-z0-9]{40,}"),
    ("openai-legacy-key", r"sk-[A-Za-z0-9]{20,}"),
    ("huggingface-token", r"(?:hf|api_org)_[A-Za-z0-9]{24,}"),
    ("groq-key", r"gsk_[A-Za-z0-9]{20,}"),
    ("replicate-token", r"r8_[A-Za-z0-9]{24,}"),
    ("xai-key", r"xai-[A-Za-z0-9]{24,}"),
    ("perplexity-key", r"pplx-[A-Za-z0-9]{24,}"),
    ("nvidia-key", r"nvapi-[A-Za-z0-9_-]{40,}"),
    ("pinecone-key", r"pcsk_[A-Za-z0-9_]{40,}"),
    ("together-key", r"tgp_v1_[A-Za-z0-9_-]{40,}"),
    ("jina-key", r"jina_[a-f0-9]{32}[A-Za-z0-9_-]{20,}"),
    ("firecrawl-key", r"fc-[a-f0-9]{32}"),
    ("langsmith-key", r"lsv2_(?:pt|sk)_[a-f0-9_]{32,}"),
    ("tavily-key", r"tvly-[A-Za-z0-9-]{20,}"),
    # Payment and shops
    ("stripe-key", r"[rs]k_(?:(?:org_)?(?:live|test)|org)_[A-Za-z0-9]{10,}"),
    ("stripe-webhook-secret", r"whsec_[A-Za-z0-9+/=]{20,}"),
    ("square-token", r"(?:sq0[a-z]{3}-[A-Za-z0-9_-]{20,}|EAAA[A-Za-z0-9_-]{56,})"),
    ("braintree-token", r"access_token\$(?:production|sandbox)\$[a-z0-9]{16}\$[a-f0-9]{32}"),
    ("razorpay-key", r"rzp_(?:live|test)_[A-Za-z0-9]{14,}"),
    ("shopify-token", r"shp(?:at|ca|pa|ss|ua)_[A-Fa-f0-9]{32}"),
    # Chat
    ("slack-token", r"(?:xox[a-z](?:\.xox[a-z])?|xwfp)-[A-Za-z0-9-]{10,}"),
    ("slack-app-token", r"xapp-[A-Za-z0-9-]{20,}"),
    ("slack-webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/_-]{16,}"),
    ("discord-webhook", r"discord(?:app)?\.com/api/webhooks/\d{10,20}/[A-Za-z0-9_-]{20,}"),
    ("discord-token", r"(?:[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}|mfa\.[A-Za-z0-9_-]{60,})"),
    ("meta-token", r"EAA[A-Z][A-Za-z0-9]{80,}"),
    ("telegram-token", r"\d{8,10}:AA[A-Za-z0-9_-]{30,}"),
    ("teams-webhook", r"webhook\.office\.com/webhookb2/[A-Za-z0-9@/_-]{20,}"),
    # Mail and telephone
    ("sendgrid-key", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,}"),
    ("mailgun-key", r"(?:key-[a-f0-9]{32}|[a-f0-9]{32}-[a-f0-9]{8}-[a-f0-9]{8})"),
    ("mailchimp-key", r"[a-f0-9]{32}-us\d{1,2}"),
    ("brevo-key", r"x(?:keysib|smtpsib)-[A-Za-z0-9-]{40,}"),
    ("resend-key", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{16,}"),
    ("twilio-key", r"SK[a-f0-9]{32}"),
    # Package registries
    ("npm-token", r"npm_[A-Za-z0-9]{30,}"),
    ("pypi-token", r"pypi-Ag[A-Za-z0-9_-]{40,}"),
    ("rubygems-key", r"rubygems_[a-f0-9]{40,}"),
    ("docker-token", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}"),
    ("crates-token", r"cio[A-Za-z0-9]{32}"),
    ("nuget-key", r"oy2[a-z0-9]{43}"),
    ("artifactory-token", r"(?:AKCp|cmVmdGtu)[A-Za-z0-9]{40,}"),
    # Work
    ("notion-token", r"(?:ntn|secret)_[A-Za-z0-9]{40,}"),
    ("linear-key", r"lin_(?:api|oauth)_[A-Za-z0-9]{30,}"),
    ("hubspot-token", r"pat-(?:na|eu|ap)\d-[a-f0-9-]{32,}"),
    ("figma-token", r"figd_[A-Za-z0-9_-]{30,}"),
    ("airtable-token", r"pat[A-Za-z0-9]{14}\.[a-f0-9]{64}"),
    ("postman-key", r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),
    ("grafana-token", r"gl(?:c_|sa_)[A-Za-z0-9+/=_]{32,}"),
    ("sentry-token", r"sntry[su]_[A-Za-z0-9+/=_-]{40,}"),
    ("newrelic-key", r"NRAK-[A-Z0-9]{27}"),
    ("age-key", r"AGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    # Of no vendor
    ("jwt", r"eyJ[A-Za-z0-9_-]{14,}(?:\.[A-Za-z0-9_-]*){0,4}"),
    (
        "private-key",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----[^-]*(?:-(?!----)[^-]*)*"
        r"(?:-----END [A-Z0-9 ]{0,40}-----)?",
    ),
)

"""Keys that are recognised by their form, with their names; where two begin alike, the longer beginning comes first."""

# By first letter, in both cases: where a text has none of these letters, nothing is tried.
_TELLING_WORD = (
    r"(?:[Pp](?i:ass(?:word|wd|phrase|code)s?|rivate[_-]?key)|(?:(?<![A-Za-z])[Pp](?i:ass|wd)|(?<=[a-z])P(?:ass|wd))"
    r"(?![\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?[/~])|[Ss](?i:ecrets?|igning[_-]?key|ession[_-]?id|torage[_-]?key)"
    r"|[Cc](?i:redentials?|lient[_-]?key|onsumer[_-]?key)|[Aa](?i:(?:pi|pp|uth|ccess|ccount)[_-]?key)"
    r"|[Ee](?i:ncryption[_-]?key)|[Mm](?i:aster[_-]?key)|[Tt](?i:oken))"
)
_SUFFIX = r"(?:[_-][A-Za-z0-9_-]{0,24}|[A-Z0-9][A-Za-z0-9]{0,24})?"

SECRET_NAME: Final = rf"(?:{_TELLING_WORD}{_SUFFIX}|(?i:(?:proxy-)?authori[sz]ation|(?:set-)?cookies?))\Z"
"""The ending of a secret's name."""

_IS = r"\\{0,3}[\"']?[ \t]{0,4}(?>=>|:=|[:=])[ \t]{0,4}"  # atomic: the `=` of `:=` is no part of a secret
_QUOTE = r"\\{0,3}[\"']"
_NONE = (
    r"(?:\[REDACTED:[a-z0-9-]{1,40}\]|(?i:true|false|null|none|nil|undefined|yes|no)|\*+|<[^<>\s]{0,40}>|\$\{?\w{1,60}\}?)"
    r"(?=[\s\"'\\&,;<>)\]}]|\Z)"
)
"""The placeholders that stand in a secret's place."""

SECRET_PLACES: Final = (
    ("authorization", rf"[Aa](?i:uthori[sz]ation){_IS}(?:{_QUOTE})?", r"[^\r\n\"'\\]+"),
    ("cookie", rf"[Cc](?i:ookies?){_IS}(?:{_QUOTE})?", r"[^\r\n\"'\\]+"),
    ("bearer-token", r"[Bb](?i:earer)[ \t]{1,4}", r"[A-Za-z0-9._~+/=-]{16,}"),
    ("password", r"(?<=://)(?!\[REDACTED:)[^\s/:@\"'<>]{0,256}:", r"[^\s/\"'<>]{1,1024}(?=@)"),
    (
        "secret",
        rf"{_TELLING_WORD}{_SUFFIX}{_IS}(?P<quote>{_QUOTE})?(?!{_NONE})",
        rf"(?(quote)(?:(?!(?P=quote))(?:\\.|[^\n]))+|(?!{_QUOTE})[^\s\"'&,;<>]+)",
    ),
)
"""The places of secrets: a name, the text before it, which is kept, and the secret."""

"""Writes the model of the recorded answers: its words are tokens, and its template says
what it was given. Run it with PYTHONPATH=test/others/serving and the folder to write."""

import json
import sys
from pathlib import Path

from model import write_model

TEMPLATE = (
    "{% if tools %}{% for t in tools %}w100 {{ t['function']['name'] }} {{ t['function']['description'] }} "
    "{{ t['function']['parameters']['title'] }} {% endfor %}{% endif %}"
    "{% for m in messages %}{{ {'system':'w101','user':'w102','assistant':'w103','tool':'w104'}[m['role']] }} "
    "{% if m['reasoning'] %}w105 {{ m['reasoning'] }} {% endif %}{% if m['content'] %}{{ m['content'] }} {% endif %}"
    "{% for c in m['tool_calls'] or [] %}w106 {{ c['function']['name'] }} {{ c['function']['arguments']['q'] }} "
    "{% endfor %}{% endfor %}{% if documents %}w107 {{ documents[0]['text'] }} {% endif %}"
    "{% if reasoning_effort %}w108 {% endif %}{% if enable_thinking is defined %}"
    "{% if enable_thinking %}w109 {% else %}w111 {% endif %}{% endif %}{% if add_generation_prompt %}w110{% endif %}"
)

directory = Path(sys.argv[1])
write_model(directory)
path = directory / "tokenizer_config.json"
config = json.loads(path.read_text())
config["chat_template"] = TEMPLATE
path.write_text(json.dumps(config))

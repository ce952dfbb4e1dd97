"""Chat templates: what transformers renders, and nothing more."""

import json

import pytest

from hpmoe.models.checkpoint import chat

ASK = [dict(role='user', content='Who <are> you?')]
TEMPLATE = """{%- for m in messages %}
  {% if m.role == 'tool' %}{{ raise_exception('no\ntools') }}{% endif %}
<|{{ m['role'] }}|>{{ m['content'] | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def _files(template, **config):
  content = dict(chat_template=template, eos_token='</s>') | config
  return {'tokenizer_config.json': json.dumps(content).encode()}


class TestRender:
  def test_as_transformers(self):
    # Made by transformers 5.23, apply_chat_template(..., tokenize=False).
    text = chat.render(_files(TEMPLATE), ASK)
    assert text == '<|user|>Who <are> you?</s>\n<|assistant|>'

  def test_a_file_of_its_own_comes_first(self):
    files = _files('no') | {'chat_template.jinja': b'{{ bos_token }}{{ a }}!'}
    assert chat.render(files, ASK) == '!'

  def test_the_default_of_several(self):
    several = [
      dict(name='tool_use', template='no'),
      dict(name='default', template='{{ messages | tojson }}'),
    ]
    assert json.loads(chat.render(_files(several), ASK)) == ASK

  def test_a_token_with_its_options(self):
    files = _files(
      '{{ bos_token }}', bos_token=dict(content='<s>', lstrip=True)
    )
    assert chat.render(files, ASK) == '<s>'

  def test_tokens_that_the_map_alone_names(self):
    files = _files('{{ bos_token }}|{{ eos_token }}', eos_token=None)
    files['special_tokens_map.json'] = json.dumps(
      dict(bos_token='<s>', eos_token=dict(content='<e>'))
    ).encode()
    assert chat.render(files, ASK) == '<s>|<e>'

  def test_what_training_marks_is_its_text(self):
    # Made by transformers 5.23, apply_chat_template(..., tokenize=False).
    template = (
      '{% for m in messages %}\n{% generation %}\n{{ m.content }}'
      '{{ eos_token }}\n{% endgeneration %}\n{% endfor %}!'
    )
    assert chat.render(_files(template), ASK) == 'Who <are> you?</s>\n!'

  def test_templates_in_a_folder_of_their_own(self):
    tools = {'additional_chat_templates/tool_use.jinja': b'tools'}
    files = {'chat_template.jinja': b'plain'} | tools
    assert chat.render(files, ASK) == 'plain'
    default = tools | {'additional_chat_templates/default.jinja': b'default'}
    assert chat.render(default, ASK) == 'default'
    with pytest.raises(ValueError, match='got .*s/tool_use.jinja$'):
      chat.render(tools, ASK)

  @pytest.mark.parametrize(
    'template, text',
    [
      ('{{ "".__class__.__mro__ }}', "access to attribute '__class__'"),
      ('{{ messages.append(1) }}', "access to attribute 'append'"),
      ('{% for i in range(10**9) %}{% endfor %}', 'Range too big'),
      ('{{ messages[0].content.x.y }}', "no attribute 'x'"),
      ('{% if %}', 'Expected an expression'),
      (TEMPLATE, 'no tools'),
      (None, 'expected a template in chat_template.jinja or'),
    ],
  )
  def test_refuses(self, template, text):
    messages = [dict(role='tool', content='x')] if template == TEMPLATE else ASK
    with pytest.raises(ValueError, match='^chat: ') as error:
      chat.render(_files(template), messages)
    assert text in str(error.value) and '\n' not in str(error.value)

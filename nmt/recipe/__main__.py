"""`python -m nmt.recipe` prints the JSON Schema of recipes, which `recipes/schema.json` holds."""

import json

from nmt.recipe.loading import json_schema

print(json.dumps(json_schema(), indent=2, ensure_ascii=False))

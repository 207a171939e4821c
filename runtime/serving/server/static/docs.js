// The API page: paths and body fields from /openapi.json.
"use strict";

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return "list of " + typeOf(schema.items || {});
  if (schema.type === "object" && schema.additionalProperties && typeof schema.additionalProperties === "object") {
    return "object of " + typeOf(schema.additionalProperties);
  }
  return schema.type || "any";
}

function fieldsOf(schema, required) {
  const table = element("table"), head = element("tr");
  for (const name of ["field", "type", "default"]) head.append(element("th", "", name));
  table.append(head);
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = element("tr"), cell = element("td");
    cell.append(element("code", "", name));
    const fallback = required.includes(name) ? "required" : "default" in field ? JSON.stringify(field.default) : "";
    row.append(cell, element("td", "", typeOf(field)), element("td", "", fallback));
    table.append(row);
  }
  const scroll = element("div", "scroll");
  scroll.append(table);
  return scroll;
}

function bodyOf(operation, schemas) {
  const content = operation.requestBody && operation.requestBody.content["application/json"];
  if (!content) return null;
  const schema = content.schema.$ref ? schemas[content.schema.$ref.split("/").pop()] : content.schema;
  return { schema, required: schema.required || [] };
}

const EXAMPLES = {
  "/v1/completions": { prompt: "Once upon a time", max_tokens: 32 },
  "/v1/chat/completions": { messages: [{ role: "user", content: "Hello!" }], stream: true },
};

function exampleOf(method, path, model) {
  const url = new URL(path.slice(1), document.baseURI).href;
  if (method === "get") return path.includes("{") ? "" : "curl " + url;
  if (!(path in EXAMPLES)) return "";
  const body = JSON.stringify({ model, ...EXAMPLES[path] });
  return "curl -N " + url + " -H 'content-type: application/json' \\\n  -d '" + body + "'";
}

async function show() {
  const main = document.getElementById("paths");
  try {
    const api = await (await fetch("openapi.json")).json();
    const schemas = (api.components && api.components.schemas) || {};
    let model = "MODEL";
    const key = sessionStorage.getItem("sscc-api-key");
    const models = await fetch("v1/models", { headers: key ? { authorization: "Bearer " + key } : {} });
    if (models.ok) model = (await models.json()).data[0].id;
    main.replaceChildren();
    for (const [path, operations] of Object.entries(api.paths)) {
      for (const [method, operation] of Object.entries(operations)) {
        const card = element("section", "card"), title = element("h2");
        title.append(element("span", "method", method.toUpperCase()), element("code", "", path));
        card.append(title, element("p", "small", operation.description || operation.summary || ""));
        const body = bodyOf(operation, schemas);
        if (body) card.append(fieldsOf(body.schema, body.required));
        const example = exampleOf(method, path, model);
        if (example) card.append(element("pre", "", example));
        main.append(card);
      }
    }
    const bodies = Object.values(api.paths).flatMap(Object.values).map((one) => bodyOf(one, schemas)).filter(Boolean);
    const shown = new Set([...bodies.map((body) => body.schema), schemas.HTTPValidationError, schemas.ValidationError]);
    for (const name of Object.keys(schemas).filter((one) => schemas[one].properties && !shown.has(schemas[one]))) {
      const card = element("section", "card");
      card.append(element("h2", "", name), element("p", "small", schemas[name].description || ""));
      card.append(fieldsOf(schemas[name], schemas[name].required || []));
      main.append(card);
    }
    const errors = element("section", "card");
    errors.append(element("h2", "", "Errors"), element("p", "small", "The body of every response with status 400 or above (/v1/messages: Anthropic's format):"));
    errors.append(element("pre", "", '{"error": {"message": "..", "type": "..", "param": null, "code": null}}'));
    main.append(errors);
  } catch (error) {
    main.replaceChildren(element("p", "card notice", "Cannot load openapi.json: " + error.message));
  }
}

show();

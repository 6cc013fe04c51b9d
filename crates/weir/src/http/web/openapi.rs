//! Descriptions of an API (OpenAPI 3.1). They are made from the types that read requests and write
//! answers.

use std::collections::BTreeMap;

use bytes::Bytes;
use utoipa::ToSchema;
use utoipa::openapi::path::{OperationBuilder, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{
    ComponentsBuilder, Object, ObjectBuilder, OneOfBuilder, Schema, Type,
};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, HttpMethod, InfoBuilder, LicenseBuilder, OpenApiBuilder, Paths,
    Ref, RefOr, Required, ResponseBuilder, ServerBuilder,
};

use super::problem::{Document, Kind};

/// All operations of an address.
#[derive(Default)]
pub(crate) struct Description {
    paths: Paths,
    schemas: Schemas,
    /// The cookie that may stand for the token, if there is one.
    cookie: Option<&'static str>,
}

/// One method of one path.
pub(crate) struct Operation {
    builder: OperationBuilder,
    schemas: Schemas,
    refusals: Vec<Kind>,
}

type Schemas = Vec<(String, RefOr<Schema>)>;

impl Description {
    pub(crate) fn operation(
        mut self,
        method: HttpMethod,
        path: &str,
        operation: Operation,
    ) -> Self {
        let Operation { mut builder, schemas, refusals } = operation;
        let mut by_status = BTreeMap::<u16, Vec<&str>>::new();
        for kind in refusals {
            let (slug, _, status) = kind.facts();
            let slugs = by_status.entry(status.as_u16()).or_default();
            if !slugs.contains(&slug) {
                slugs.push(slug);
            }
        }
        for (status, slugs) in by_status {
            builder = builder.response(status.to_string(), refusal(status, &slugs));
        }
        self.schemas.extend(schemas);
        self.paths.add_path_operation(path, vec![method], builder);
        self
    }

    /// Names the cookie of the operations that are [`Operation::in_session`].
    pub(crate) fn cookie(self, name: &'static str) -> Self {
        Self { cookie: Some(name), ..self }
    }

    /// The document as it is served.
    pub(crate) fn write(mut self, title: &str, description: &str) -> Bytes {
        add::<Document<'_>>(&mut self.schemas);
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let mut components = ComponentsBuilder::new()
            .schemas_from_iter(self.schemas)
            .security_scheme(TOKEN, SecurityScheme::Http(bearer.build()));
        if let Some(cookie) = self.cookie {
            let cookie = SecurityScheme::ApiKey(ApiKey::Cookie(ApiKeyValue::new(cookie)));
            components = components.security_scheme(SESSION, cookie);
        }
        let license = LicenseBuilder::new().name(LICENSE).identifier(Some(LICENSE)).build();
        let info = InfoBuilder::new()
            .title(title)
            .license(Some(license))
            .version(env!("CARGO_PKG_VERSION"))
            .description(Some(description));
        let about = Some("The gateway that serves this document");
        let server = ServerBuilder::new().url("/").description(about).build();
        let document = OpenApiBuilder::new()
            .info(info)
            .servers(Some([server]))
            .paths(self.paths)
            .components(Some(components.build()))
            .build();
        document.to_json().expect("its keys are texts").into()
    }
}

impl Operation {
    pub(crate) fn new(id: &str, summary: &str) -> Self {
        let builder = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some(summary))
            .security(SecurityRequirement::default())
            .security(SecurityRequirement::new(TOKEN, Vec::<String>::new()));
        Self { builder, schemas: Vec::new(), refusals: Vec::new() }
    }

    /// An operation that needs a token with these scopes, or a session of one.
    pub(crate) fn in_session(id: &str, summary: &str, scopes: &[&str]) -> Self {
        let builder = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some(summary))
            .security(SecurityRequirement::default())
            .security(SecurityRequirement::new(TOKEN, scopes.iter().copied()))
            .security(SecurityRequirement::new(SESSION, scopes.iter().copied()));
        Self { builder, schemas: Vec::new(), refusals: Vec::new() }
    }

    /// An operation that needs no token.
    pub(crate) fn open(id: &str, summary: &str) -> Self {
        let builder = OperationBuilder::new()
            .operation_id(Some(id))
            .summary(Some(summary))
            .security(SecurityRequirement::default());
        Self { builder, schemas: Vec::new(), refusals: Vec::new() }
    }

    pub(crate) fn description(self, description: &str) -> Self {
        Self { builder: self.builder.description(Some(description)), ..self }
    }

    /// A part of the path.
    pub(crate) fn segment(self, name: &str, description: &str, schema: Object) -> Self {
        self.parameter(ParameterIn::Path, name, description, schema.into())
    }

    /// An optional parameter of the query.
    pub(crate) fn query(
        self,
        name: &str,
        description: &str,
        schema: impl Into<RefOr<Schema>>,
    ) -> Self {
        self.parameter(ParameterIn::Query, name, description, schema.into())
    }

    /// An optional header.
    pub(crate) fn header(self, name: &str, description: &str, schema: Object) -> Self {
        self.parameter(ParameterIn::Header, name, description, schema.into())
    }

    fn parameter(
        self,
        place: ParameterIn,
        name: &str,
        description: &str,
        schema: RefOr<Schema>,
    ) -> Self {
        let required = if place == ParameterIn::Path { Required::True } else { Required::False };
        let parameter = ParameterBuilder::new()
            .name(name)
            .parameter_in(place)
            .required(required)
            .description(Some(description))
            .schema(Some(schema));
        Self { builder: self.builder.parameter(parameter), ..self }
    }

    /// A JSON body of one of two types.
    pub(crate) fn body_of<One: ToSchema, Other: ToSchema>(mut self) -> Self {
        let (one, other) = (add::<One>(&mut self.schemas), add::<Other>(&mut self.schemas));
        self.body(either(one, other), Required::True)
    }

    /// A JSON body.
    pub(crate) fn takes<T: ToSchema>(mut self) -> Self {
        let schema = add::<T>(&mut self.schemas);
        self.body(schema.into(), Required::True)
    }

    /// A JSON body that may be left out.
    pub(crate) fn may_take<T: ToSchema>(mut self) -> Self {
        let schema = add::<T>(&mut self.schemas);
        self.body(schema.into(), Required::False)
    }

    /// A text body of one of these media types.
    pub(crate) fn body_text(self, content_types: &[&str]) -> Self {
        let mut body = RequestBodyBuilder::new().required(Some(Required::True));
        for content_type in content_types {
            let content = ContentBuilder::new().schema(Some(text())).build();
            body = body.content(*content_type, content);
        }
        Self { builder: self.builder.request_body(Some(body.build())), ..self }.refuses(&CODED)
    }

    pub(crate) fn body(self, schema: RefOr<Schema>, required: Required) -> Self {
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let body = RequestBodyBuilder::new()
            .content("application/json", content)
            .required(Some(required))
            .build();
        Self { builder: self.builder.request_body(Some(body)), ..self }.refuses(&CODED)
    }

    /// Status 200 with this JSON type.
    pub(crate) fn answers<T: ToSchema>(mut self, description: &str) -> Self {
        let schema = add::<T>(&mut self.schemas);
        self.answers_json(description, schema.into())
    }

    /// Status 202 with a JSON type.
    pub(crate) fn accepts<T: ToSchema>(mut self, description: &str) -> Self {
        let schema = add::<T>(&mut self.schemas);
        self.response(202, description, Some(("application/json", schema.into())))
    }

    /// Status 200 with one of two JSON types.
    pub(crate) fn answers_with<One: ToSchema, Other: ToSchema>(
        mut self,
        description: &str,
    ) -> Self {
        let (one, other) = (add::<One>(&mut self.schemas), add::<Other>(&mut self.schemas));
        self.answers_json(description, either(one, other))
    }

    pub(crate) fn answers_json(self, description: &str, schema: RefOr<Schema>) -> Self {
        self.response(200, description, Some(("application/json", schema)))
    }

    /// Status 200 with text of a media type.
    pub(crate) fn answers_text(self, content_type: &'static str, description: &str) -> Self {
        self.response(200, description, Some((content_type, text().into())))
    }

    /// Status 200 with text of one of these media types.
    pub(crate) fn answers_texts(self, content_types: &[&'static str], description: &str) -> Self {
        let mut response = ResponseBuilder::new().description(description);
        for content_type in content_types {
            let content = ContentBuilder::new().schema(Some(RefOr::from(text()))).build();
            response = response.content(*content_type, content);
        }
        Self { builder: self.builder.response("200", response.build()), ..self }
    }

    /// A status without a body.
    pub(crate) fn answers_nothing(self, status: u16, description: &str) -> Self {
        self.response(status, description, None)
    }

    fn response(
        self,
        status: u16,
        description: &str,
        content: Option<(&'static str, RefOr<Schema>)>,
    ) -> Self {
        let mut response = ResponseBuilder::new().description(description);
        if let Some((content_type, schema)) = content {
            let content = ContentBuilder::new().schema(Some(schema)).build();
            response = response.content(content_type, content);
        }
        Self { builder: self.builder.response(status.to_string(), response.build()), ..self }
    }

    /// The problems that it may answer with.
    pub(crate) fn refuses(mut self, kinds: &[Kind]) -> Self {
        self.refusals.extend(kinds);
        self
    }
}

/// Any text.
pub(crate) fn text() -> Object {
    Object::with_type(Type::String)
}

/// The schema of `Idempotency-Key`.
pub(crate) fn idempotency_key() -> Object {
    ObjectBuilder::from(text_like("^[!-~]+$")).max_length(Some(255)).build()
}

/// A text of this format.
pub(crate) fn text_like(pattern: &str) -> Object {
    ObjectBuilder::from(text()).pattern(Some(pattern)).build()
}

/// The parameter that [`super::query::Query::limit`] reads.
pub(crate) fn limit() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(super::query::LIMIT_MAX))
        .default(Some(super::query::LIMIT_DEFAULT.into()))
        .build()
}

fn either(one: Ref, other: Ref) -> RefOr<Schema> {
    RefOr::T(OneOfBuilder::new().item(one).item(other).build().into())
}

fn refusal(status: u16, slugs: &[&str]) -> ResponseBuilder {
    let slugs: Vec<String> = slugs.iter().map(|slug| format!("`{slug}`")).collect();
    let problem = RefOr::Ref(Ref::from_schema_name(Document::name()));
    let content = ContentBuilder::new().schema(Some(problem)).build();
    let mut response = ResponseBuilder::new()
        .description(slugs.join(", "))
        .content("application/problem+json", content);
    let header = match status {
        401 => Some(("WWW-Authenticate", text())),
        429 | 503 => Some(("Retry-After", text_like("^[0-9]+$"))),
        _ => None,
    };
    if let Some((name, schema)) = header {
        response = response.header(name, HeaderBuilder::new().schema(Some(schema)).build());
    }
    response
}

/// Adds a type and all types that it consists of. Returns the reference to it.
fn add<T: ToSchema>(schemas: &mut Schemas) -> Ref {
    let name = T::name().into_owned();
    T::schemas(schemas);
    schemas.push((name.clone(), T::schema()));
    Ref::from_schema_name(name)
}

/// What `Idempotency-Key` does.
pub(crate) const IDEMPOTENCY_KEY: &str = "A message that is sent again within five minutes, by the same caller to the same target \
                                          with the same key, is not published again: the answer is that of the first. \
                                          Visible ASCII.";
const TOKEN: &str = "token";
const SESSION: &str = "session";
const LICENSE: &str = env!("CARGO_PKG_LICENSE");
/// The problems that any body may cause.
const CODED: [Kind; 2] = [Kind::UnsupportedMediaType, Kind::UnknownCoding];

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;

    /// Checks that the document names this answer to a request. It checks nothing for an unknown
    /// path.
    pub(crate) fn check(document: &[u8], (method, path): (&str, &str), status: u16, kind: &str) {
        let document: Value = serde_json::from_slice(document).unwrap();
        let method = if method == "HEAD" { "get".to_owned() } else { method.to_lowercase() };
        let paths = document["paths"].as_object().unwrap();
        let found = paths.iter().find(|(template, _)| fits(template, path));
        let Some(operation) = found.and_then(|(_, item)| item.get(method)) else { return };
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{status} of {path} is not documented: {operation}");
        let essence = kind.split(';').next().unwrap();
        let is_known = match response["content"].as_object() {
            Some(kinds) => kinds.contains_key(essence),
            None => essence.is_empty(),
        };
        assert!(is_known, "{kind:?} of {status} of {path} is not documented: {response}");
    }

    /// The paths and methods of the document, as `METHOD /path`, sorted.
    pub(crate) fn operations(document: &[u8]) -> Vec<String> {
        let document: Value = serde_json::from_slice(document).unwrap();
        let mut operations = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            operations.extend(
                item.as_object()
                    .unwrap()
                    .keys()
                    .map(|method| format!("{} {path}", method.to_uppercase())),
            );
        }
        operations.sort_unstable();
        operations
    }

    /// The scopes of a token that the operation needs.
    pub(crate) fn scopes(document: &[u8], method: &str, path: &str) -> Vec<String> {
        let document: Value = serde_json::from_slice(document).unwrap();
        let security = &document["paths"][path][method.to_lowercase()]["security"];
        let mut ways = security.as_array().unwrap().iter();
        let scopes = ways.find_map(|way| way.get(super::TOKEN)).and_then(Value::as_array);
        let words = scopes.into_iter().flatten().filter_map(Value::as_str);
        words.map(str::to_owned).collect()
    }

    fn fits(template: &str, path: &str) -> bool {
        let path = path.split('?').next().unwrap();
        template.split('/').count() == path.split('/').count()
            && template.split('/').zip(path.split('/')).all(|(named, given)| {
                if named.starts_with('{') { !given.is_empty() } else { named == given }
            })
    }
}

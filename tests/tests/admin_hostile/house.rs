//! The gateway that is attacked, and what shows that an attack has failed.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::{Answer, Metrics, PATIENCE, Server, now, program, rest};

/// The scopes, each of which is that of one token, named after it.
const SCOPES: [&str; 4] = ["read", "publish", "operate", "devices"];
pub(crate) const OPERATOR: &str = "the-operators-own";

/// A running gateway with the operator's token, one token for each scope, and two services.
pub(crate) struct House {
    pub(crate) server: Server,
    pub(crate) tokens: BTreeMap<&'static str, String>,
    pub(crate) hashes: Vec<String>,
}

/// What a token is made with: `weir token`. Returns the token and the lines for the configuration.
fn make_token(scope: &str) -> Result<(String, String)> {
    let output =
        Command::new(program("weir")?).args(["token", "--name", scope, "--may", scope]).output()?;
    let (lines, said) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(output.status.success(), "{said}");
    let token = said.trim().rsplit(' ').next().context("a token")?.to_owned();
    ensure!(!lines.contains(&token), "the lines hold the hash alone: {lines}");
    Ok((token, lines))
}

impl House {
    pub(crate) fn new() -> Result<House> {
        let (mut tokens, mut hashes, mut extra) = (BTreeMap::new(), Vec::new(), String::new());
        for scope in SCOPES {
            let (token, lines) = make_token(scope)?;
            let hash =
                lines.lines().find_map(|line| line.strip_prefix("hash = ")).context("a hash")?;
            hashes.push(hash.trim_matches('"').to_owned());
            tokens.insert(scope, token);
            extra += &format!("{lines}\n");
        }
        let server = Server::start(&format!(
            "[admin]\ntoken = {OPERATOR:?}\n{extra}\
             [[auth.services]]\ntoken = \"mouth\"\nname = \"mouth-service\"\nmay = [\"publish\"]\n\
             [[auth.services]]\ntoken = \"ears\"\nname = \"ears-service\"\nmay = [\"events\"]\n\
             [log]\nlevel = \"info\"\n"
        ))?;
        Ok(House { server, tokens, hashes })
    }

    /// Sends a request with these lines in its head.
    pub(crate) fn ask(&self, method: &str, target: &str, head: &str, body: &str) -> Result<Answer> {
        let host = if head.contains("Host:") { "" } else { "Host: localhost\r\n" };
        let (length, kind) = (body.len(), "application/json");
        let kind = if head.contains("Content-Type:") {
            String::new()
        } else {
            format!("Content-Type: {kind}\r\n")
        };
        let request = format!(
            "{method} {target} HTTP/1.1\r\n{host}Connection: close\r\n{kind}Content-Length: {length}\r\n{head}\r\n{body}"
        );
        Answer::ask(self.server.admin, &request)
            .with_context(|| format!("{method} {target}\n{head}"))
    }

    pub(crate) fn metrics(&self) -> Result<Metrics> {
        let request = format!(
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}\r\n",
            bearer(OPERATOR)
        );
        let answer = Answer::ask(self.server.admin, &request)?;
        Ok(Metrics::of(answer.body))
    }

    pub(crate) fn count(&self, outcome: &str) -> Result<f64> {
        let label = format!("outcome=\"{outcome}\"");
        Ok(self.metrics()?.sum("weir_admin_acts_total", &label))
    }

    /// The audit log, the newest first.
    pub(crate) fn audit(&self) -> Result<Vec<Value>> {
        let answer = self.ask("GET", "/v1/audit?limit=1000", &bearer(OPERATOR), "")?;
        let audit: Value = serde_json::from_str(&answer.body)?;
        Ok(audit["entries"].as_array().context("entries")?.clone())
    }

    /// Carries out an attack that is refused with this status, and checks that it is counted, in the audit log and in
    /// the log. Where many attacks leave no room for another entry, it waits and attacks again.
    pub(crate) fn refused(
        &self,
        (status, outcome): (u16, &str),
        what: &str,
        attack: impl Fn() -> Result<Answer>,
    ) -> Result<Answer> {
        let deadline = now() + PATIENCE;
        loop {
            let before = self.count(outcome)?;
            let answer = attack()?;
            ensure!(answer.status == status, "{what} got {answer:?}");
            ensure!(answer.body.contains("urn:problem-type:weir:") || status == 431, "{answer:?}");
            // A head that is not HTTP is noted when its connection has ended.
            while self.count(outcome)? == before {
                ensure!(now() < deadline, "{what} is not counted as {outcome}");
                rest();
            }
            let audit = self.audit()?;
            let is_it = |entry: &&Value| {
                entry["what"].as_str().is_some_and(|shown| shown.contains(what))
                    && entry["outcome"] == outcome
            };
            if let Some(entry) = audit.iter().find(is_it) {
                let from = entry["from"].as_str().unwrap_or_default();
                ensure!(from.starts_with("127.0.0."), "{entry}");
                let (who, act) = (&entry["who"], &entry["act"]);
                let line = format!(
                    " audit: refused attempt act={act} who={who} from={from} what={:?} outcome=\"{outcome}\"",
                    entry["what"].as_str().unwrap_or_default()
                );
                self.server.await_log(&line, 1)?;
                return Ok(answer);
            }
            ensure!(now() < deadline, "{what} is not in the audit log: {audit:?}");
            rest();
        }
    }

    /// Signs in, and returns the line with the cookie.
    pub(crate) fn sign_in(&self, token: &str, head: &str) -> Result<String> {
        let answer = self.ask("POST", "/v1/session", head, &json!({"token": token}).to_string())?;
        ensure!(answer.status == 200, "{answer:?}");
        let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let (cookie, attributes) =
            cookie.context("a cookie")?.split_once("; ").context("attributes")?;
        ensure!(attributes == "HttpOnly; SameSite=Strict; Path=/", "{attributes}");
        Ok(format!("Cookie: {cookie}\r\n"))
    }

    /// Nothing has panicked, no secret stands in the log, and the gateway is as it was.
    pub(crate) fn is_unharmed(&self) -> Result<()> {
        let log = self.server.log();
        ensure!(!log.contains("panicked"), "{log}");
        let secrets = self.tokens.values().map(String::as_str).chain([OPERATOR]);
        for secret in secrets.chain(self.hashes.iter().map(|hash| &hash["sha256:".len()..])) {
            ensure!(!log.contains(secret), "a secret stands in the log");
            let audit = serde_json::to_string(&self.audit()?)?;
            ensure!(!audit.contains(secret), "a secret stands in the audit log");
        }
        let drain = self.ask("GET", "/v1/drain", &bearer(OPERATOR), "")?;
        ensure!(drain.status == 200 && drain.body.contains("\"state\":\"idle\""), "{drain:?}");
        Ok(())
    }
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

//! What is asked: the same of all, or a device's activation each time.

use crate::activations::Activations;
use crate::protocol::HttpPlan;

/// Writes requests, one after the other.
#[derive(Debug)]
pub(super) struct Asker {
    /// Of HTTP/1.1, all of a request but what it carries.
    head: Vec<u8>,
    activations: Option<Activations>,
    /// Requests written so far.
    pub(super) asked: u64,
}

impl Asker {
    pub(super) fn new(plan: &HttpPlan, authority: &str) -> Asker {
        let mut asker = Asker { head: Vec::new(), activations: plan.activations.clone(), asked: 0 };
        let mut content = Vec::new();
        asker.write_content(&mut content);
        asker.asked = 0;
        let (method, path) = (if asker.posts() { "POST" } else { "GET" }, &plan.path);
        let close = if plan.style.is_per_connection() { "Connection: close\r\n" } else { "" };
        let length = if asker.posts() {
            format!("Content-Type: application/json\r\nContent-Length: {}\r\n", content.len())
        } else {
            String::new()
        };
        asker.head =
            format!("{method} {path} HTTP/1.1\r\nHost: {authority}\r\n{close}{length}\r\n")
                .into_bytes();
        asker
    }

    /// Whether requests carry anything.
    pub(super) fn posts(&self) -> bool {
        self.activations.is_some()
    }

    /// A request of HTTP/1.1; whether an activation of it is to succeed.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.head);
        self.write_content(out)
    }

    /// What the next request carries; as above.
    pub(super) fn write_content(&mut self, out: &mut Vec<u8>) -> bool {
        let number = self.asked;
        self.asked += 1;
        let Some(activations) = &self.activations else { return true };
        out.push(b'{');
        let is_hit = activations.write(number, out);
        out.push(b'}');
        is_hit
    }
}

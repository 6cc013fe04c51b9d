//! Writes the requests: the same one each time, a device's activation, or the same message.

use crate::protocol::{HttpPlan, Posts};

/// Writes requests, one after the other.
#[derive(Debug)]
pub(super) struct Asker {
    /// The request of HTTP/1.1, without its body.
    head: Vec<u8>,
    posts: Option<Posts>,
    /// Requests written so far.
    pub(super) asked: u64,
}

impl Asker {
    pub(super) fn new(plan: &HttpPlan, authority: &str) -> Asker {
        let mut asker = Asker { head: Vec::new(), posts: plan.posts.clone(), asked: 0 };
        let mut content = Vec::new();
        asker.write_content(&mut content);
        asker.asked = 0;
        let (method, path) = (if asker.posts() { "POST" } else { "GET" }, &plan.path);
        let close = if plan.style.is_per_connection() { "Connection: close\r\n" } else { "" };
        let token = match &plan.posts {
            Some(Posts::Message(message)) => {
                format!("Authorization: Bearer {}\r\n", message.token)
            }
            Some(Posts::Activations(_)) | None => String::new(),
        };
        let length = if asker.posts() {
            format!("Content-Type: application/json\r\nContent-Length: {}\r\n", content.len())
        } else {
            String::new()
        };
        asker.head =
            format!("{method} {path} HTTP/1.1\r\nHost: {authority}\r\n{token}{close}{length}\r\n")
                .into_bytes();
        asker
    }

    /// Whether requests have a body.
    pub(super) fn posts(&self) -> bool {
        self.posts.is_some()
    }

    /// Writes a request of HTTP/1.1; returns whether an activation in it must succeed.
    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> bool {
        out.extend_from_slice(&self.head);
        self.write_content(out)
    }

    /// Writes the body of the next request; returns the same.
    pub(super) fn write_content(&mut self, out: &mut Vec<u8>) -> bool {
        let number = self.asked;
        self.asked += 1;
        match &self.posts {
            None => true,
            Some(Posts::Activations(activations)) => {
                out.push(b'{');
                let is_hit = activations.write(number, out);
                out.push(b'}');
                is_hit
            }
            Some(Posts::Message(message)) => {
                for part in
                    ["{\"topic\":\"", &message.topic, "\",\"text\":\"", &message.text, "\"}"]
                {
                    out.extend_from_slice(part.as_bytes());
                }
                true
            }
        }
    }
}

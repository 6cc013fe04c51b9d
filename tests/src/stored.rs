//! Devices of a server's store, by its admin API and by the API that they activate with.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::admin::Answer;
use crate::program::Server;

impl Server {
    /// Where HTTP is spoken.
    pub fn http_addr(&self) -> Result<SocketAddr> {
        self.http.context("it speaks HTTP")
    }

    /// Where datagrams are answered.
    pub fn udp_addr(&self) -> Result<SocketAddr> {
        self.udp.context("it answers datagrams")
    }

    /// Imports devices: rows of serial number, comma and key.
    pub fn import(&self, rows: &str) -> Result<()> {
        let body = format!("devSn,devKey\n{rows}");
        let answer = Answer::ask(
            self.admin,
            &format!(
                "POST /v1/devices HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: text/csv\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                self.admin,
                body.len()
            ),
        )?;
        ensure!(answer.status == 200 && answer.body.contains("\"bad\":0"), "{answer:?}");
        Ok(())
    }

    /// Activates a device from this address, any of 127.0.0.0/8.
    pub fn activate(&self, from: [u8; 4], serial: &str, key: &str) -> Result<Answer> {
        let addr = self.http_addr()?;
        let body = json!({"devSn": serial, "devKey": key}).to_string();
        let length = body.len();
        Answer::ask_from(
            Ipv4Addr::from(from),
            addr,
            &format!(
                "POST /v1/devices/activate HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
                 Content-Length: {length}\r\n\r\n{body}"
            ),
        )
    }

    /// The token of a device, by activation over HTTP.
    pub fn token(&self, serial: &str, key: &str) -> Result<String> {
        let answer = self.activate([127, 0, 0, 1], serial, key)?;
        ensure!(answer.status == 200, "{answer:?}");
        let activated: Value = serde_json::from_str(&answer.body)?;
        Ok(activated["pt"].as_str().context("a token")?.to_owned())
    }

    /// What is kept of a device.
    pub fn stored(&self, serial: &str) -> Result<Value> {
        let shown = Answer::get(self.admin, &format!("/v1/devices/{serial}"))?;
        let mut shown: Value = serde_json::from_str(&shown.body)?;
        Ok(shown["stored"].take())
    }

    /// How often it has been activated, as a metric has it.
    pub fn activations(&self, outcome: &str) -> Result<f64> {
        Ok(self.metrics()?.sum_of("weir_activations_total", &[("outcome", outcome)]))
    }
}

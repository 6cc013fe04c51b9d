//! The form of a line in both formats.

use std::io::Write as _;
use std::net::IpAddr;

use http::Version;

use super::Entry;
use super::escape;
use super::stamp::Stamp;
use crate::base::config::AccessLogFormat;

/// Appends the line of a request, including its end.
///
/// Cost: no allocation if `out` has room for [`bytes_max`].
pub(super) fn write(format: AccessLogFormat, out: &mut Vec<u8>, stamp: &Stamp, entry: &Entry<'_>) {
    match format {
        AccessLogFormat::Json => json(out, stamp, entry),
        AccessLogFormat::Combined => combined(out, stamp, entry),
    }
}

/// The greatest possible length of this request's line.
pub(super) fn bytes_max(entry: &Entry<'_>) -> usize {
    let shown = |text: Option<&[u8]>, max: usize| text.map_or(0, |text| text.len().min(max));
    let texts = shown(Some(entry.method.as_bytes()), METHOD_BYTES_MAX)
        + shown(Some(entry.target.as_bytes()), TARGET_BYTES_MAX)
        + shown(entry.host, HOST_BYTES_MAX)
        + shown(entry.user_agent, USER_AGENT_BYTES_MAX)
        + shown(entry.referer, REFERER_BYTES_MAX)
        + shown(entry.device.map(str::as_bytes), DEVICE_BYTES_MAX);
    FIXED_BYTES_MAX + ESCAPED_BYTES_MAX * texts
}

fn json(out: &mut Vec<u8>, stamp: &Stamp, entry: &Entry<'_>) {
    out.extend_from_slice(b"{\"time\":\"");
    stamp.rfc3339(out);
    out.extend_from_slice(b"\",\"remote\":\"");
    remote(out, entry.remote);
    out.extend_from_slice(b"\",\"method\":\"");
    json_text(out, entry.method.as_bytes(), METHOD_BYTES_MAX);
    out.extend_from_slice(b"\",\"path\":\"");
    json_text(out, path(entry.target.as_bytes()), TARGET_BYTES_MAX);
    out.extend_from_slice(b"\",\"version\":\"");
    out.extend_from_slice(version(entry.version));
    out.extend_from_slice(b"\",\"status\":");
    number(out, entry.status);
    out.extend_from_slice(b",\"bytes\":");
    number(out, entry.bytes);
    out.extend_from_slice(b",\"duration_us\":");
    number(out, micros(entry));
    let mut member = |name: &str, text: Option<&[u8]>, max: usize| {
        let Some(text) = text else { return };
        out.extend_from_slice(name.as_bytes());
        json_text(out, text, max);
        out.push(b'"');
    };
    member(",\"host\":\"", entry.host, HOST_BYTES_MAX);
    member(",\"user_agent\":\"", entry.user_agent, USER_AGENT_BYTES_MAX);
    member(",\"referer\":\"", entry.referer.map(path), REFERER_BYTES_MAX);
    member(",\"device\":\"", entry.device.map(str::as_bytes), DEVICE_BYTES_MAX);
    if let Some(id) = entry.ids.request_id() {
        out.extend_from_slice(b",\"request_id\":\"");
        escape::json(out, id);
        out.push(b'"');
    }
    if let Some(trace) = entry.ids.trace() {
        out.extend_from_slice(b",\"trace_id\":\"");
        out.extend_from_slice(trace.trace_id().as_bytes());
        out.extend_from_slice(b"\",\"span_id\":\"");
        out.extend_from_slice(trace.span_id().as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b"}\n");
}

fn combined(out: &mut Vec<u8>, stamp: &Stamp, entry: &Entry<'_>) {
    remote(out, entry.remote);
    out.extend_from_slice(b" - ");
    match entry.device {
        Some(device) if !device.is_empty() => {
            clipped(out, device.as_bytes(), DEVICE_BYTES_MAX, escape::combined_word);
        }
        Some(_) | None => out.push(b'-'),
    }
    out.extend_from_slice(b" [");
    stamp.combined(out);
    out.extend_from_slice(b"] \"");
    combined_text(out, entry.method.as_bytes(), METHOD_BYTES_MAX);
    out.push(b' ');
    combined_text(out, path(entry.target.as_bytes()), TARGET_BYTES_MAX);
    out.extend_from_slice(b" HTTP/");
    out.extend_from_slice(version(entry.version));
    out.extend_from_slice(b"\" ");
    number(out, entry.status);
    out.push(b' ');
    number(out, entry.bytes);
    out.extend_from_slice(b" \"");
    combined_text(out, entry.referer.map_or(b"-", path), REFERER_BYTES_MAX);
    out.extend_from_slice(b"\" \"");
    combined_text(out, entry.user_agent.unwrap_or(b"-"), USER_AGENT_BYTES_MAX);
    out.extend_from_slice(b"\"\n");
}

/// The part before the query, which may contain tokens.
fn path(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    &target[..end.unwrap_or(target.len())]
}

fn json_text(out: &mut Vec<u8>, text: &[u8], max: usize) {
    clipped(out, text, max, escape::json);
}

fn combined_text(out: &mut Vec<u8>, text: &[u8], max: usize) {
    clipped(out, text, max, escape::combined);
}

fn clipped(out: &mut Vec<u8>, text: &[u8], max: usize, write: impl Fn(&mut Vec<u8>, &[u8])) {
    write(out, &text[..text.len().min(max)]);
    if text.len() > max {
        out.extend_from_slice(b"...");
    }
}

/// Writes an IPv4 address in its own form, even if it came over IPv6.
fn remote(out: &mut Vec<u8>, ip: Option<IpAddr>) {
    let Some(ip) = ip else { return out.push(b'-') };
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [first, others @ ..] = ip.octets();
            number(out, first);
            for octet in others {
                out.push(b'.');
                number(out, octet);
            }
        }
        IpAddr::V6(ip) => write!(out, "{ip}").expect("a Vec takes everything"),
    }
}

fn version(version: Version) -> &'static [u8] {
    match version {
        Version::HTTP_09 => b"0.9",
        Version::HTTP_10 => b"1.0",
        Version::HTTP_2 => b"2.0",
        Version::HTTP_3 => b"3.0",
        _ => b"1.1",
    }
}

fn micros(entry: &Entry<'_>) -> u64 {
    u64::try_from(entry.took.as_micros()).unwrap_or(u64::MAX)
}

fn number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Twice the longest registered method.
pub(crate) const METHOD_BYTES_MAX: usize = 32;
/// Has room for a topic's name in escaped form.
pub(crate) const TARGET_BYTES_MAX: usize = 2_048;
/// A DNS name and a port.
pub(crate) const HOST_BYTES_MAX: usize = 261;
/// Browsers send some 200 bytes.
pub(crate) const USER_AGENT_BYTES_MAX: usize = 512;
pub(crate) const REFERER_BYTES_MAX: usize = 1_024;
/// The greatest value of `limits.device_id_bytes_max`.
const DEVICE_BYTES_MAX: usize = 1_024;

/// The fixed parts of a line: names, numbers, address, ids, and the marks of six texts that were
/// too long.
const FIXED_BYTES_MAX: usize = 640;
/// `\u0000` for one byte.
const ESCAPED_BYTES_MAX: usize = 6;

/// The longest possible line.
pub(super) const LINE_BYTES_MAX: usize = FIXED_BYTES_MAX
    + ESCAPED_BYTES_MAX
        * (METHOD_BYTES_MAX
            + TARGET_BYTES_MAX
            + HOST_BYTES_MAX
            + USER_AGENT_BYTES_MAX
            + REFERER_BYTES_MAX
            + DEVICE_BYTES_MAX);

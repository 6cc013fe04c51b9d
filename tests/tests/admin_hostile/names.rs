//! Names that peers choose, and the command that makes tokens.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_tests::{Device, program};
use weir_wire::v1::{self, client_message, server_message};

use crate::house::{House, OPERATOR, bearer};

#[test]
fn injected_names_come_out_as_data() -> Result<()> {
    let house = House::new()?;
    let markup = "<img src=x onerror=alert(1)>\"'&\u{2028}</script>";
    let escapes = "line\r\nbreak \u{1b}[31m\0";
    let mut device = Device::connect(house.server.tcp)?;
    let client = format!("{markup}{escapes}");
    let hello = v1::Hello { device_id: markup.into(), client, ..v1::Hello::default() };
    device.send(client_message::Kind::Hello(hello))?;
    let welcome = device.hear()?;
    assert!(matches!(welcome, Some(server_message::Kind::Welcome(_))), "{welcome:?}");
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
    let read = bearer(&house.tokens["read"]);
    for path in [format!("/v1/devices/{}", encoded(markup)), "/v1/connections".to_owned()] {
        let answer = house.ask("GET", &path, &read, "")?;
        let head = answer.head.to_ascii_lowercase();
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        let value: Value = serde_json::from_str(&answer.body)?;
        assert_eq!(value["connections"][0]["device"], markup, "{value}");
    }
    // A device that is not there, whose name is only in the request.
    for (name, status) in [(markup, 204), (escapes, 404)] {
        let path = format!("/v1/devices/{}/revoke", encoded(name));
        let answer = house.ask("POST", &path, &bearer(&house.tokens["devices"]), "{}")?;
        assert_eq!(answer.status, status, "{answer:?}");
        let newest = house.audit()?.remove(0);
        assert_eq!(
            (&newest["what"], &newest["who"]),
            (&json!(format!("device {name}")), &json!("devices"))
        );
    }
    let topic = json!({"topic": markup, "text": "t"}).to_string();
    assert_eq!(house.ask("POST", "/v1/publish", &bearer(OPERATOR), &topic)?.status, 200);
    assert_eq!(house.audit()?[0]["what"], format!("topic {markup}"));
    house.server.await_log("act=\"publish\"", 1)?;
    let log = house.server.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("onerror") || line.contains("break")).collect();
    let is_line =
        |line: &&&str| line.contains(" audit: administrative act act=") && line.ends_with('"');
    assert_eq!(lines.iter().filter(is_line).count(), 3, "{lines:?}");
    let is_raw = |character: char| character.is_control() || character == '\u{2028}';
    assert!(!lines.iter().any(|line| line.contains(is_raw)), "{lines:?}");
    house.is_unharmed()
}

/// `weir token` hashes a token that exists, and takes none from the command line.
#[test]
fn a_token_that_exists_can_be_hashed() -> Result<()> {
    let hash = |args: &[&str], input: &str| -> Result<(bool, String, String)> {
        let mut command = Command::new(program("weir")?);
        command.arg("token").args(args).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().context("an input")?.write_all(input.as_bytes())?;
        let output = child.wait_with_output()?;
        let text = |bytes| String::from_utf8(bytes);
        Ok((output.status.success(), text(output.stdout)?, text(output.stderr)?))
    };
    let (is_done, lines, said) =
        hash(&["--token", "-", "--name", "ci", "--may", "read,publish"], "abc\n")?;
    let expected = "[[admin.tokens]]\nname = \"ci\"\n\
                    hash = \"sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"\n\
                    may = [\"read\", \"publish\"]\n";
    assert_eq!((is_done, lines.as_str(), said.as_str()), (true, expected, ""));
    for (args, input, says) in [
        (&["--token", "-"][..], "", "the token has 0 bytes: allowed is 1 to 4096"),
        (&["--token", "-"], "two words", "printable ASCII without spaces"),
        (&["--token", "abc"], "", "invalid value"),
        (&["--may", "everything"], "", "one of read, publish, operate, devices"),
        (
            &["--name", "two words"],
            "",
            "admin.tokens[0].name = \"two words\": allowed is 1 to 64 visible",
        ),
    ] {
        let (is_done, lines, said) = hash(args, input)?;
        assert!(!is_done && lines.is_empty() && said.contains(says), "{args:?}: {said}");
    }
    Ok(())
}

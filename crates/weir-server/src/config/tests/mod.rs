//! Tables of configuration files and their results.

use std::path::Path;
use std::time::Duration;

use weir::keys::Entry;

use super::names::{is_list_of_tables, variable};
use super::*;

/// Loads a file with this text; these variables override it.
fn load(text: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f.toml");
    std::fs::write(&path, text).unwrap();
    let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let prefix = format!("{}/", directory.path().display());
    Settings::load(Some(&path), variables).map_err(|error| error.to_string().replace(&prefix, ""))
}

/// Each file is refused with one line that begins like this.
fn assert_refused(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        let error = load(text, &[]).unwrap_err();
        assert!(error.starts_with(expected), "{text}\n gives {error}\n   not {expected}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn nothing_at_all_gives_the_defaults() {
    assert_eq!(load("", &[]), Ok(Settings::default()));
    assert_eq!(Settings::load(None, []).unwrap(), Settings::default());
}

#[test]
fn the_file_is_read_and_variables_go_over_it() {
    let text = r#"
        [listen]
        tcp = ["127.0.0.1:0", "[::1]:7070"]
        admin = ""
        [auth]
        anonymous = false
        [[auth.tokens]]
        token = "t"
        device = "d"
        [[auth.tokens]]
        token = "u"
        [threads]
        pin = false
        [limits]
        frame_bytes_max = 0x1_0000
        [connection]
        heartbeat = "30s"
        drain_timeout = "500ms"
        [log]
        format = "json"
    "#;
    let variables = [
        ("WEIR_CONNECTION_HEARTBEAT", "45s"),
        ("WEIR_LISTEN_TCP", "127.0.0.2:1, 127.0.0.3:2"),
        ("WEIR_ADMIN_HOSTS", "a.example,b.example"),
        ("WEIR_LOG_LEVEL", "warn,weir=debug"),
        ("WEIR_CONFIG", "elsewhere.toml"),
        ("PATH", "/bin"),
    ];

    let settings = load(text, &variables).unwrap();

    let gateway = &settings.gateway;
    assert_eq!(
        gateway.listen.tcp,
        ["127.0.0.2:1".parse().unwrap(), "127.0.0.3:2".parse().unwrap()]
    );
    assert_eq!(gateway.listen.admin, None);
    assert_eq!(gateway.auth.anonymous, Some(false));
    let tokens: Vec<_> = gateway
        .auth
        .tokens
        .iter()
        .map(|token| (token.token.as_str(), token.device.as_deref()))
        .collect();
    assert_eq!(tokens, [("t", Some("d")), ("u", None)]);
    assert_eq!(gateway.admin.hosts, ["a.example", "b.example"]);
    assert!(!gateway.threads.pin);
    assert_eq!(gateway.limits.frame_bytes_max, 65_536);
    assert_eq!(gateway.connection.heartbeat, Duration::from_secs(45));
    assert_eq!(gateway.connection.drain_timeout, Duration::from_millis(500));
    assert_eq!(settings.log.format, LogFormat::Json);
    assert_eq!(settings.log.level, "warn,weir=debug");
}

#[test]
fn what_is_wrong_in_a_file_is_said_with_its_place() {
    let cases = [
        // Syntax.
        ("[listen]\ntcp = \n", "f.toml:2:7: not TOML: "),
        ("a = 1\na = 2\n", "f.toml:2:1: not TOML: duplicate key"),
        // Names.
        (
            "[listen]\ntpc = [\"127.0.0.1:1\"]\n",
            "f.toml:2:1: listen.tpc = [\"127.0.0.1:1\"]: no such key; did you mean listen.tcp?",
        ),
        (
            "[limits]\n  wheels = 4\n",
            "f.toml:2:3: limits.wheels = 4: no such key; `weir config reference` lists all",
        ),
        ("[limit]\n", "f.toml:1:2: [limit]: no such section; did you mean limits?"),
        (
            "topics_max = 3\n",
            "f.toml:1:1: topics_max = 3: no such key outside a section; did you mean topics_max?",
        ),
        ("listen = 7070\n", "f.toml:1:1: listen = 7070: this is a section: write [listen]"),
        // Types.
        (
            "[threads]\nshards = \"two\"\n",
            "f.toml:2:10: threads.shards = \"two\": allowed is a whole number, 0 to 256",
        ),
        (
            "[threads]\nfront = \"two\"\n",
            "f.toml:2:9: threads.front = \"two\": allowed is a whole number, \
             up to four for each processor and 256 at most",
        ),
        (
            "[limits]\ntopics_max = -1\n",
            "f.toml:2:14: limits.topics_max = -1: allowed is a whole number, 1 to 16777216",
        ),
        (
            "[limits]\ntopics_max = 1.5\n",
            "f.toml:2:14: limits.topics_max = 1.5: allowed is a whole number, 1 to 16777216",
        ),
        (
            "[connection]\nheartbeat = 60\n",
            "f.toml:2:13: connection.heartbeat = 60: allowed is a duration such as \"500ms\", \"10s\", \
             \"15m\" or \"1h\", heartbeat_min to heartbeat_max",
        ),
        (
            "[connection]\nheartbeat = \"1 fortnight\"\n",
            "f.toml:2:13: connection.heartbeat = \"1 fortnight\": allowed is a duration such as ",
        ),
        ("[threads]\npin = 1\n", "f.toml:2:7: threads.pin = 1: allowed is true or false"),
        (
            "[listen]\ntcp = [\"localhost:1\"]\n",
            "f.toml:2:1: listen.tcp = [\"localhost:1\"]: allowed is a list of addresses such as ",
        ),
        (
            "[log]\nformat = \"xml\"\n",
            "f.toml:2:10: log.format = \"xml\": allowed is \"text\" or \"json\"",
        ),
    ];
    assert_refused(&cases);
}

#[test]
fn a_value_out_of_range_or_at_odds_with_another_is_said_with_its_place() {
    let cases = [
        (
            "[limits]\n\ntopic_bytes_max = 0\n",
            "f.toml:3:19: limits.topic_bytes_max = 0: allowed is 1 to 1024",
        ),
        (
            "[auth]\nanonymous = true\n[listen]\ntcp = [\"0.0.0.0:7070\"]\n",
            "f.toml:2:13: auth.anonymous = true: allowed is true only while every address of listen.tcp",
        ),
        (
            "[log]\nlevel = \"loud=?\"\n",
            "f.toml:2:9: log.level = \"loud=?\": allowed is one of off,",
        ),
        (
            "[log]\nlines_per_second = 1000001\n",
            "f.toml:2:20: log.lines_per_second = 1000001: allowed is 0 to 1000000",
        ),
        ("[log]\nqueue_lines = 1\n", "f.toml:2:15: log.queue_lines = 1: allowed is 128 to 1048576"),
        (
            "[[auth.tokens]]\ntoken = \"s3cret\"\n[[auth.tokens]]\ntoken = \"s3cret\"\n",
            "f.toml:4:9: auth.tokens[1].token = (hidden): allowed is a token of its own",
        ),
        (
            "[[auth.tokens]]\ntoken = \"t\"\ndevice = \"\"\n",
            "f.toml:3:10: auth.tokens[0].device = \"\": allowed is 1 to 128 bytes",
        ),
        (
            "[connection]\nhello_timeout = \"3h\"\n",
            "f.toml:2:17: connection.hello_timeout = \"3h\": allowed is 100ms to 3600s",
        ),
    ];
    assert_refused(&cases);
}

/// The invalid value is then a default, which has no place of its own.
#[test]
fn a_default_that_no_longer_fits_is_said_with_the_place_of_what_it_depends_on() {
    assert_refused(&[
        (
            "[listen]\ntcp = [\"0.0.0.0:7070\"]\n[store]\nkind = \"none\"\n",
            "f.toml:2:1: auth.tokens = []: allowed is at least one token, since 0.0.0.0:7070",
        ),
        (
            "[auth]\nanonymous = false\n[store]\nkind = \"none\"\n",
            "f.toml:2:13: auth.tokens = []: allowed is at least one token while auth.anonymous is false",
        ),
        (
            "[listen]\nadmin = \"0.0.0.0:7090\"\n",
            "f.toml:2:9: admin.token = \"\": allowed is a token, here or in [[admin.tokens]], since listen.admin = 0.0.0.0:7090",
        ),
        ("[connection]\nheartbeat_min = \"2m\"\n", "f.toml:2:17: connection.heartbeat = 60s: "),
        ("[connection]\nheartbeat_max = \"30s\"\n", "f.toml:2:17: connection.heartbeat = 60s: "),
        ("[connection]\nheartbeat_min = \"30m\"\n", "f.toml:2:17: connection.heartbeat_max = 900s"),
        ("[connection]\nstall_timeout = \"2m\"\n", "f.toml:2:17: tcp.user_timeout = 60s: "),
        (
            "[limits]\nframe_bytes_max = 1048576\n",
            "f.toml:2:19: connection.high_watermark_bytes = 131072: allowed is 1081344",
        ),
    ]);
    let variables = [("WEIR_LISTEN_TCP", "0.0.0.0:7070"), ("WEIR_STORE_KIND", "none")];
    let error = load("", &variables).unwrap_err();
    assert!(error.starts_with("WEIR_LISTEN_TCP: auth.tokens = []: "), "{error}");
}

#[test]
fn every_member_of_a_list_s_tables_has_its_place() {
    let text = "[[auth.tokens]]\ntokn = \"5171\"\n\n[[auth.tokens]]\ntoken = \"5172\"\n\
                device = 5173\nwheels = \"5174\"\n[[auth.tokens]]\ntoken = 5175\n\
                [[auth.tokens]]\n";

    let error = load(text, &[]).unwrap_err();

    let lines: Vec<_> = error.lines().collect();
    assert_eq!(
        lines,
        [
            "f.toml:2:1: auth.tokens[0].tokn = (hidden): no such key; did you mean token?",
            "f.toml:6:10: auth.tokens[1].device = 5173: allowed is a text, 1 to limits.device_id_bytes_max bytes, not a \
             service's",
            "f.toml:7:1: auth.tokens[1].wheels = (hidden): no such key; `weir config reference` lists all",
            "f.toml:9:9: auth.tokens[2].token = (hidden): allowed is a text, 1 to 4096 bytes, no two alike",
            "f.toml:10:1: auth.tokens[3].token = (absent): this key is required; allowed is a text, 1 to 4096 bytes, no two \
             alike",
        ]
    );
    let inline = "[auth]\ntokens = [{ token = \"t\" },\n  { device = \"d\" }]\n";
    assert_refused(&[(
        inline,
        "f.toml:3:3: auth.tokens[1].token = (absent): this key is required; ",
    )]);
}

/// An error for an embedding program also has line, key and limit.
#[test]
fn an_embedding_program_is_told_where_and_what() {
    let cases = [
        ("[limits]\ntopics_max = 1.5\n", "line 2, column 14", "whole number, 1 to 16777216"),
        ("[limits]\ntopic_max = 1\n", "line 2, column 1", "unknown field `topic_max`"),
        ("[[auth.tokens]]\ntoken = \"t\"\ndevice = 3\n", "line 3, column 10", "allowed is a text"),
        ("[[auth.tokens]]\ndevice = \"d\"\n", "line 1, column 1", "missing field `token`"),
        ("[auth]\ntokens = 3\n", "line 2, column 10", "expected tables [[auth.tokens]]"),
    ];
    for (text, place, what) in cases {
        let error = toml::from_str::<weir::Config>(text).unwrap_err().to_string();
        assert!(error.contains(place) && error.contains(what), "{error}");
    }
}

#[test]
fn everything_wrong_in_a_file_is_said_at_once() {
    let text = "[limits]\ntopics_max = \"many\"\n[threads]\npin = 2\n[threat]\n";

    let error = load(text, &[("WEIR_LOG_FORMAT", "yaml")]).unwrap_err();

    let places: Vec<_> = error.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(places, ["f.toml:2:14", "f.toml:4:7", "f.toml:5:2", "WEIR_LOG_FORMAT"]);
}

#[test]
fn secrets_are_not_repeated() {
    let cases = [
        ("[admin]\ntoken = 5171\n", "f.toml:2:9: admin.token = (hidden): allowed is a text"),
        (
            "[admin]\ntokn = \"5171\"\n",
            "f.toml:2:1: admin.tokn = (hidden): no such key; did you mean",
        ),
        ("token = \"5171\"\n", "f.toml:1:1: token = (hidden): no such key outside a section"),
        (
            "[[auth.tokens]]\ntoken = \"5171\"\nname = \"x\"\n",
            "f.toml:3:1: auth.tokens[0].name = (hidden): no such key",
        ),
        (
            "[auth]\ntokens = [\"5171\"]\n",
            "f.toml:2:1: auth.tokens = (hidden): allowed is tables [[auth.tokens]]",
        ),
    ];
    for (text, expected) in cases {
        let error = load(text, &[]).unwrap_err();
        assert!(error.starts_with(expected), "{text}\n gives {error}\n   not {expected}");
        assert!(!error.contains("5171"), "{error}");
    }
}

#[test]
fn what_is_wrong_in_a_variable_is_said_with_its_name() {
    let cases = [
        (
            ("WEIR_LIMITS_TOPICS_MAX", "many"),
            "WEIR_LIMITS_TOPICS_MAX: limits.topics_max = \"many\": allowed is a whole number, 1 to 16777216",
        ),
        (
            ("WEIR_LIMITS_TOPICS_MAX", "0"),
            "WEIR_LIMITS_TOPICS_MAX: limits.topics_max = 0: allowed is 1 to 16777216",
        ),
        (
            ("WEIR_LISTEN_TPC", "127.0.0.1:1"),
            "WEIR_LISTEN_TPC: no such key; did you mean WEIR_LISTEN_TCP?",
        ),
        (
            ("WEIR_LISTEN_TCP", ""),
            "WEIR_LISTEN_TCP: listen.tcp = []: allowed is at least one address, here or in listen.tls",
        ),
        (
            ("WEIR_CONNECTION_HELLO_TIMEOUT", "3h"),
            "WEIR_CONNECTION_HELLO_TIMEOUT: connection.hello_timeout = \"3h\": allowed is 100ms to",
        ),
        (
            ("WEIR_AUTH_TOKENS", "t"),
            "WEIR_AUTH_TOKENS: auth.tokens is a list of tables: only the file can set it",
        ),
    ];
    for (variable, expected) in cases {
        let file = "[limits]\ntopics_max = 7\n[listen]\nhttp = []\n";
        let error = load(file, &[variable]).unwrap_err();
        assert!(error.starts_with(expected), "{variable:?}\n gives {error}\n   not {expected}");
    }
}

#[test]
fn variables_that_are_somebody_else_s_are_let_be() {
    for name in ["WEIR_SERVICE_HOST", "WEIR_PORT", "WEIR_PORT_7070_TCP", "WEIR_ADMIN_SERVICE_HOST"]
    {
        assert_eq!(load("", &[(name, "10.0.0.1")]), Ok(Settings::default()), "{name}");
    }
}

#[test]
fn a_file_that_is_not_there_is_refused() {
    let error = Settings::load(Some(Path::new("/nowhere/weir.toml")), []).unwrap_err();
    assert!(error.to_string().contains("cannot read the configuration file /nowhere/weir.toml"));
}

/// Paths and defaults of the keys that variables can set.
fn defaults() -> Vec<(String, String)> {
    let settings = Settings::default();
    let all = keys::all("", &settings).into_iter();
    all.filter(|entry| entry.value.as_table().is_none() && !is_list_of_tables(entry.value))
        .filter_map(|entry| Some((entry.path, entry.value.show()?)))
        .collect()
}

#[test]
fn every_default_is_read_back_as_it_is_shown() {
    for (path, shown) in defaults() {
        let (section, name) = path.rsplit_once('.').unwrap();
        let text = format!("[{section}]\n{name} = {shown}\n");
        assert_eq!(load(&text, &[]), Ok(Settings::default()), "{text}");
    }
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for (path, shown) in defaults() {
        let text = shown.trim_matches(['[', ']']).trim_matches('"').to_owned();
        let mut settings = Settings::default();
        let (_, value) = keys::find_mut(&mut settings, &path).unwrap();
        assert!(value.read_text(&text), "{}={text}", variable(&path));
        assert_eq!(settings, Settings::default(), "{}={text}", variable(&path));
    }
}

/// The ends of a range, and values beyond them, with the unit in the file.
fn ends(key: &Key, value: &dyn Value) -> Option<([String; 2], Vec<String>)> {
    let range = key.rules.range.as_ref()?;
    let unit = if value.unit(key.rules.unit)? == "time" { "ms" } else { "" };
    let beyond = [range.start().checked_sub(1), Some(range.end() + 1)].into_iter().flatten();
    let written = |number: &u64| format!("{number}{unit}");
    let within = [range.start(), range.end()].map(written);
    Some((within, beyond.map(|number| written(&number)).collect()))
}

/// The ends of every range are allowed, and values beyond them are refused.
#[test]
fn every_range_is_checked() {
    let refusal = |path: &str, text: &str| {
        let mut settings = Settings::default();
        assert!(keys::find_mut(&mut settings, path).unwrap().1.read_text(text));
        // Another key may be at fault once this one is at its end: not what is asked here.
        settings.validate().err().filter(|error| error.key == path)
    };
    let mut checked = 0;
    for Entry { path, key, value } in keys::all("", &Settings::default()) {
        let Some((within, beyond)) = ends(key, value) else { continue };
        for allowed in within {
            assert_eq!(refusal(&path, &allowed), None);
        }
        for beyond in beyond {
            assert!(refusal(&path, &beyond).is_some(), "{path} = {beyond}");
        }
        checked += 1;
    }
    assert!(checked > 60, "only {checked} ranges were found");
}

#[test]
fn the_example_loads_as_it_is_and_with_every_key_uncommented() {
    let example = example();
    assert_eq!(load(&example, &[]), Ok(Settings::default()));

    let uncommented: String = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') => format!("{key}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let mut settings = load(&uncommented, &[]).unwrap();
    let (auth, classes) = (&settings.gateway.auth, &settings.gateway.topic_classes);
    assert_eq!((auth.tokens.len(), auth.services.len()), (1, 1));
    let pattern = "room/*".to_owned();
    // Keys that are absent by default have an example.
    let (scope, resume_from_oldest) = (Some(weir::Scope::Node), Some(false));
    let default = weir::TopicClass::default();
    let (publish_hook, subscribe_hook) = (Some(String::new()), Some(String::new()));
    let class = weir::TopicClass {
        pattern,
        scope,
        resume_from_oldest,
        publish_hook,
        subscribe_hook,
        ..default
    };
    assert_eq!(*classes, [class]);
    assert_eq!(settings.store.kind.take(), Some(StoreKind::Embedded));
    settings.gateway.auth = weir::AuthConfig::default();
    settings.gateway.topic_classes.clear();
    settings.gateway.upstreams.clear();
    settings.gateway.http.routes.clear();
    assert_eq!(settings.gateway.calls.routes.len(), 1);
    settings.gateway.calls.routes.clear();
    settings.gateway.hooks.receivers.clear();
    assert_eq!(settings.gateway.tls.certificates.len(), 1);
    settings.gateway.tls.certificates.clear();
    assert_eq!(settings.gateway.admin.tokens.len(), 1);
    settings.gateway.admin.tokens.clear();
    assert_eq!(settings, Settings::default());
}

#[test]
fn the_references_name_every_key() {
    for Entry { path, key, value } in keys::all("", &Settings::default()) {
        if value.as_table().is_some() {
            assert!(markdown().contains(&format!("## [{path}]\n")), "{path}");
            continue;
        }
        assert!(text().contains(&format!("\n{path}\n")), "{path}");
        let in_markdown = match is_list_of_tables(value) {
            true => format!("# [[{path}]]\n"),
            false => format!("| `{}` |", key.name),
        };
        assert!(markdown().contains(&in_markdown), "{path}");
        for (member, _) in value.row().iter().flat_map(|row| row.entries()) {
            let member = member.name;
            assert!(text().contains(&format!("\n{path}[].{member}\n")), "{path} {member}");
            assert!(markdown().contains(&format!("| `{member}` |")), "{path} {member}");
        }
    }
}

#[test]
fn every_number_has_a_unit() {
    let check = |key: &Key, value: &dyn Value| {
        assert_ne!(value.unit(key.rules.unit), Some(""), "{}", key.name);
    };
    for Entry { key, value, .. } in keys::all("", &Settings::default()) {
        check(key, value);
        for (member, value) in value.row().iter().flat_map(|row| row.entries()) {
            check(member, value);
        }
    }
}

mod cluster;
mod tables;

#[test]
fn variables_hold_no_tables() {
    for (name, list) in [
        ("WEIR_AUTH_TOKENS", "auth.tokens"),
        ("WEIR_AUTH_SERVICES", "auth.services"),
        ("WEIR_AUTH_SERVICES_0_NAME", "auth.services"),
        ("WEIR_TLS_CERTIFICATES", "tls.certificates"),
        ("WEIR_TOPIC_CLASSES", "topic_classes"),
        ("WEIR_TOPIC_CLASSES_0_TICK", "topic_classes"),
    ] {
        let expected = format!("{name}: {list} is a list of tables: only the file can set it");
        assert_eq!(load("", &[(name, "x")]).unwrap_err(), expected);
    }
    // A variable of service discovery, for a service called weir-topic-classes.
    let theirs = ("WEIR_TOPIC_CLASSES_SERVICE_HOST", "10.0.0.1");
    assert_eq!(load("", &[theirs]), Ok(Settings::default()));
}

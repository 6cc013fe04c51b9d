//! Lists of tables: tokens, services and topic classes, with every kind of member.

use super::*;

/// Every member of every list, none at its default.
const EVERYTHING: &str = r#"
[listen]
proxy_networks = ["10.0.0.0/8", "fd00::/8"]

[auth]
anonymous = false

[memory]
budget_bytes = 16777216
retention_bytes = 8388608

[limits]
connections_per_source_max = 1
connects_per_source_per_second = 2
connects_per_source_burst = 3
publishes_per_second = 4
publish_burst = 5
conflation_keys_max = 6

[[auth.tokens]]
token = "t"
device = "d"
priority = "high"
labels = ["a", "b"]

[[auth.tokens]]
token = "u"

[[auth.services]]
token = "s"
name = "n"
may = ["subscribe", "publish", "events", "call"]

[tls]
min_version = "1.3"
client_auth = "optional"
client_ca = "ca.pem"
client_crl = "crl.pem"
client_identity = "san_uri"
alpn = ["a", "b"]
ticket_secret = "0123456789abcdef0123456789abcdef"
ticket_rotation = "2h"
session_cache = "node"
session_cache_max = 7
reload_interval = "1s"
handshake_threads = 8
handshake_queue_max = 9
post_quantum = false
development_certificate_anywhere = true
development_directory = "state"

[http]
cors_origins = ["https://a.example"]

[[tls.certificates]]
certificate = "a.pem"
key = "a.key"

[[topic_classes]]
pattern = "x/{device}/*"
scope = "node"
presence = true
presence_for = []
tick = "50ms"
tick_bytes_max = 262144
conflation = true
priority = "low"
slow = "conflate"
message_bytes_max = 512
retention_messages = 7
retention_bytes = 4096
retention_ttl = "1h"
resume_from_oldest = false
history = true
publish = ["devices", "services", "label:a"]
subscribe = []
publishes_per_second = 8
publish_burst = 9

[[topic_classes]]
pattern = "*"
"#;

/// The same text as an embedding program reads it.
fn deserialized(text: &str) -> weir::Config {
    let mut table: toml::Table = toml::from_str(text).unwrap();
    // The program's own.
    table.remove("log");
    table.try_into().unwrap()
}

/// The blocks of TOML in a document.
fn blocks(markdown: &str) -> Vec<&str> {
    markdown.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn a_file_and_an_embedding_program_read_the_same() {
    let page = markdown();
    let room = include_str!("../../../../../weir.toml");
    let mut texts = blocks(&page);
    assert!(texts.len() >= 6, "{} blocks", texts.len());
    texts.extend([EVERYTHING, room]);
    for text in texts {
        let gateway = load(text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}")).gateway;
        assert_ne!(gateway, weir::Config::default(), "{text}");
        assert_eq!(gateway, deserialized(text), "{text}");
        assert_eq!(gateway.validate(), Ok(()), "{text}");
    }
}

#[test]
fn every_member_is_read() {
    let gateway = load(EVERYTHING, &[]).unwrap().gateway;

    let (networks, origins) = (gateway.listen.proxy_networks.len(), &gateway.http.cors_origins);
    assert_eq!((networks, origins[0].as_str()), (2, "https://a.example"));
    let limits = &gateway.limits;
    let rates = [limits.connects_per_source_per_second, limits.connects_per_source_burst];
    let publishing = [limits.publishes_per_second, limits.publish_burst];
    assert_eq!((limits.connections_per_source_max, rates, publishing), (1, [2, 3], [4, 5]));
    assert_eq!((limits.conflation_keys_max, gateway.memory.retention_bytes), (6, 8_388_608));
    let [token, plain] = &gateway.auth.tokens[..] else { panic!("two tokens") };
    assert_eq!((token.priority, plain.priority), (weir::Priority::High, weir::Priority::Normal));
    assert_eq!(token.labels, ["a", "b"]);
    let weir::ServiceConfig { token, name, may } = &gateway.auth.services[0];
    assert_eq!((token.as_str(), name.as_str(), &may[..]), ("s", "n", &weir::Right::ALL[..]));
    let [class, _] = &gateway.topic_classes[..] else { panic!("two classes") };
    let label = weir::Actor::Label("a".to_owned());
    let expected = weir::TopicClass {
        pattern: "x/{device}/*".to_owned(),
        scope: Some(weir::Scope::Node),
        presence: true,
        presence_for: vec![],
        tick: Duration::from_millis(50),
        tick_bytes_max: 262_144,
        conflation: true,
        priority: weir::Priority::Low,
        slow: weir::SlowPolicy::Conflate,
        message_bytes_max: 512,
        retention_messages: 7,
        retention_bytes: 4_096,
        retention_ttl: Duration::from_secs(3_600),
        resume_from_oldest: Some(false),
        history: true,
        publish: vec![weir::Actor::Devices, weir::Actor::Services, label],
        subscribe: vec![],
        publishes_per_second: 8,
        publish_burst: 9,
        ..weir::TopicClass::default()
    };
    assert_eq!(*class, expected);
    let certificate = weir::CertificateConfig { certificate: "a.pem".into(), key: "a.key".into() };
    let expected = weir::TlsConfig {
        certificates: vec![certificate],
        min_version: weir::TlsVersion::Tls13,
        client_auth: weir::ClientAuth::Optional,
        client_ca: "ca.pem".into(),
        client_crl: "crl.pem".into(),
        client_identity: weir::ClientIdentity::SanUri,
        alpn: vec!["a".to_owned(), "b".to_owned()],
        ticket_secret: "0123456789abcdef0123456789abcdef".to_owned(),
        ticket_rotation: Duration::from_secs(7_200),
        session_cache: weir::Scope::Node,
        session_cache_max: 7,
        reload_interval: Duration::from_secs(1),
        handshake_threads: 8,
        handshake_queue_max: 9,
        post_quantum: false,
        development_certificate_anywhere: true,
        development_directory: "state".into(),
    };
    assert_eq!(gateway.tls, expected);
}

/// A file, and all errors in it.
fn assert_said(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(load(text, &[]).unwrap_err(), *expected, "{text}");
    }
}

/// A class with one more member in its third line, and the error for it; `CLASS` is its path,
/// `DURATION` the kind.
fn assert_said_of_member(cases: &[(&str, &str)]) {
    for (member, expected) in cases {
        let text = format!("[[topic_classes]]\npattern = \"p\"\n{member}\n");
        let expected = expected
            .replace("CLASS", "topic_classes[0]")
            .replace("DURATION", "a duration such as \"500ms\", \"10s\", \"15m\" or \"1h\"");
        assert_said(&[(&text, &format!("f.toml:3:{expected}"))]);
    }
}

#[test]
fn numbers_and_times_of_the_wrong_kind_are_said_one_by_one() {
    assert_said_of_member(&[
        ("tick = 50", "8: CLASS.tick = 50: allowed is DURATION, 10ms to 60s, or 0ms for none"),
        (
            "tick = \"fast\"",
            "8: CLASS.tick = \"fast\": allowed is DURATION, 10ms to 60s, or 0ms for none",
        ),
        (
            "tick_bytes_max = \"1M\"",
            "18: CLASS.tick_bytes_max = \"1M\": allowed is a whole number, at least the largest message, at most \
             67108864",
        ),
        (
            "message_bytes_max = -1",
            "21: CLASS.message_bytes_max = -1: allowed is a whole number, 0 or 64 to limits.frame_bytes_max",
        ),
        (
            "retention_messages = 1.5",
            "22: CLASS.retention_messages = 1.5: allowed is a whole number, 0 to 1000000",
        ),
        (
            "retention_bytes = true",
            "19: CLASS.retention_bytes = true: allowed is a whole number, at least the largest message, at most \
             memory.retention_bytes",
        ),
        (
            "retention_ttl = \"1d\"",
            "17: CLASS.retention_ttl = \"1d\": allowed is DURATION, 1s to 168h",
        ),
        (
            "publishes_per_second = \"10/s\"",
            "24: CLASS.publishes_per_second = \"10/s\": allowed is a whole number, 0 to 1000000",
        ),
        (
            "publish_burst = []",
            "1: CLASS.publish_burst = []: allowed is a whole number, 1 to 1000000",
        ),
    ]);
}

#[test]
fn words_and_lists_of_the_wrong_kind_are_said_one_by_one() {
    assert_said_of_member(&[
        (
            "conflation = \"yes\"",
            "14: CLASS.conflation = \"yes\": allowed is true or false, true only with a tick or with slow = \
             \"conflate\"",
        ),
        (
            "priority = \"hgih\"",
            "12: CLASS.priority = \"hgih\": allowed is \"high\", \"normal\" or \"low\"",
        ),
        (
            "priority = \"norml\"",
            "12: CLASS.priority = \"norml\": allowed is \"high\", \"normal\" or \"low\"; did you mean normal?",
        ),
        ("priority = 1", "12: CLASS.priority = 1: allowed is \"high\", \"normal\" or \"low\""),
        (
            "slow = \"conflated\"",
            "8: CLASS.slow = \"conflated\": allowed is \"close\", \"drop\" or \"conflate\"; did you mean conflate?",
        ),
        (
            "publish = \"devices\"",
            "11: CLASS.publish = \"devices\": allowed is a list of \"devices\", \"services\" and \"label:NAME\", \
             labels that a token carries",
        ),
        (
            "publish = [\"services\", \"device\"]",
            "1: CLASS.publish = [\"services\", \"device\"]: allowed is a list of \"devices\", \"services\" and \
             \"label:NAME\", labels that a token carries; did you mean devices?",
        ),
        (
            "subscribe = [\"label:\"]",
            "1: CLASS.subscribe = [\"label:\"]: allowed is a list of \"devices\", \"services\" and \"label:NAME\", \
             labels that a token carries",
        ),
        ("tik = \"50ms\"", "1: CLASS.tik = \"50ms\": no such key; did you mean tick?"),
        ("wheels = 4", "1: CLASS.wheels = 4: no such key; `weir config reference` lists all"),
    ]);
}

#[test]
fn members_of_tokens_and_services_are_said_without_secrets() {
    assert_said(&[
        (
            "[[auth.tokens]]\ntoken = \"t\"\npriority = \"highest\"\n",
            "f.toml:3:12: auth.tokens[0].priority = \"highest\": allowed is \"high\", \"normal\" or \"low\"",
        ),
        (
            "[[auth.tokens]]\ntoken = \"t\"\nlabels = \"driver\"\n",
            "f.toml:3:10: auth.tokens[0].labels = \"driver\": allowed is a list of texts, 16 at most, each of 1 to 64 \
             bytes",
        ),
        (
            "[[auth.tokens]]\ntoken = \"t\"\nlabel = \"5171\"\n",
            "f.toml:3:1: auth.tokens[0].label = (hidden): no such key; did you mean labels?",
        ),
        (
            "[[auth.services]]\ntoken = 5171\nname = \"n\"\nmay = [\"events\"]\n",
            "f.toml:2:9: auth.services[0].token = (hidden): allowed is a text, 1 to 4096 bytes of printable ASCII \
             without spaces, no two alike",
        ),
        (
            "[[auth.services]]\ntoken = \"5171\"\nname = \"n\"\nmay = [\"event\"]\n",
            "f.toml:4:1: auth.services[0].may = [\"event\"]: allowed is a list of \"subscribe\", \"publish\", \
             \"events\" and \"call\", at least one; did you mean events?",
        ),
        (
            "[[auth.services]]\nname = \"n\"\n",
            "f.toml:1:1: auth.services[0].token = (absent): this key is required; allowed is a text, 1 to 4096 bytes of \
             printable ASCII without spaces, no two alike\n\
             f.toml:1:1: auth.services[0].may = (absent): this key is required; allowed is a list of \"subscribe\", \"publish\", \
             \"events\" and \"call\", at least one",
        ),
        (
            "[[topic_classes]]\npattern = \"a\"\n[[topic_classes]]\ntick = \"1s\"\n",
            "f.toml:3:1: topic_classes[1].pattern = (absent): this key is required; allowed is a text, 1 to \
             limits.topic_bytes_max bytes",
        ),
        // What is absent may be what the unknown one was meant to be.
        (
            "[[topic_classes]]\npatern = \"a\"\n",
            "f.toml:2:1: topic_classes[0].patern = \"a\": no such key; did you mean pattern?",
        ),
    ]);
}

#[test]
fn what_is_no_list_of_tables_is_said() {
    assert_said(&[
        (
            "[topic_classes]\npattern = \"a\"\n",
            "f.toml:1:1: [topic_classes]: this is a list of tables: write [[topic_classes]]",
        ),
        (
            "[auth.tokens]\ntoken = \"5171\"\n",
            "f.toml:1:1: [auth.tokens]: this is a list of tables: write [[auth.tokens]]",
        ),
        (
            "topic_classes = 5\n",
            "f.toml:1:17: topic_classes = 5: allowed is tables [[topic_classes]], each with a pattern, at most 256, \
             each with a pattern of its own",
        ),
        (
            "topic_classes = [\"a\"]\n",
            "f.toml:1:1: topic_classes = [\"a\"]: allowed is tables [[topic_classes]], each with a pattern, at most \
             256, each with a pattern of its own",
        ),
        (
            "[[topic_class]]\npattern = \"a\"\n",
            "f.toml:1:3: [[topic_class]]: no such list of tables; did you mean topic_classes?",
        ),
        (
            "[topic_class]\npattern = \"a\"\n",
            "f.toml:1:2: [topic_class]: no such section; did you mean topic_classes?",
        ),
        (
            "[[auth.service]]\ntoken = \"5171\"\n",
            "f.toml:1:8: auth.service = (hidden): no such key; did you mean auth.services?",
        ),
    ]);
}

/// The gateway's tests cover the rules; this test covers the places.
#[test]
fn a_rule_that_a_table_breaks_is_said_with_its_place() {
    assert_said(&[
        (
            "[[topic_classes]]\npattern = \"a\"\n[[topic_classes]]\npattern = \"b\"\n[[topic_classes]]\n\
             pattern = \"c\"\ntick = \"5ms\"\n",
            "f.toml:7:8: topic_classes[2].tick = \"5ms\": allowed is 10ms to 60s, or 0s for none",
        ),
        (
            "[[topic_classes]]\npattern = \"*\"\n[[topic_classes]]\npattern = \"room/*\"\n",
            "f.toml:4:11: topic_classes[1].pattern = \"room/*\": allowed is a pattern that can still match: \
             topic_classes[0].pattern = \"*\" matches all its names, and the first matching class counts; \
             put this class before it",
        ),
        // An element of a list has the list's place.
        (
            "[[topic_classes]]\npattern = \"a\"\npublish = [\"devices\", \"label:x\"]\n",
            "f.toml:3:1: topic_classes[0].publish[1] = \"label:x\": allowed is a label of a token, but no \
             token in auth.tokens has labels",
        ),
        (
            "[listen]\nproxy_networks = [\"10.0.0.0/8\", \"0.0.0.0/0\"]\n",
            "f.toml:2:1: listen.proxy_networks[1] = \"0.0.0.0/0\": allowed is only the networks of your \
             proxies: this one contains every address, so anyone could claim any address in a PROXY header",
        ),
        // A default at fault has the place of what it depends on, or of its table.
        (
            "[listen]\nproxy_networks = [\"127.0.0.1/32\"]\n",
            "f.toml:2:1: auth.anonymous = (absent): allowed is true or false, and not absent while \
             listen.proxy_networks is set: absent means true on loopback, but connections through a proxy \
             come from elsewhere",
        ),
        (
            "[limits]\nframe_bytes_max = 2097152\n[connection]\nhigh_watermark_bytes = 4194304\n\
             [[topic_classes]]\npattern = \"a\"\ntick = \"1s\"\n",
            "f.toml:2:19: topic_classes[0].tick_bytes_max = 1048576: allowed is 2097152 (a message of the largest \
             size) to 67108864: one tick is held and copied in one piece",
        ),
        (
            "[[auth.services]]\ntoken = \"s\"\nname = \"n\"\nmay = []\n",
            "f.toml:4:1: auth.services[0].may = []: allowed is at least one of subscribe, publish and events",
        ),
        (
            "[admin]\ntoken = \"5171\"\n[[auth.services]]\ntoken = \"5171\"\nname = \"n\"\nmay = [\"events\"]\n",
            "f.toml:4:9: auth.services[0].token = (hidden): allowed is a token of its own: admin.token has the same one",
        ),
        (
            "[[admin.tokens]]\nname = \"n\"\nhash = \"5171\"\nmay = [\"read\"]\n",
            "f.toml:3:8: admin.tokens[0].hash = (hidden): allowed is sha256: and the 64 hexadecimal digits of the token's \
             SHA-256, as `weir token` prints it",
        ),
    ]);
}

#[test]
fn networks_are_read_and_refused() {
    const ALLOWED: &str = "allowed is a list of networks such as [\"10.0.0.0/8\", \"fd00::/8\"], not the whole world, \
                           at most 256";
    for network in ["10.0.0.1", "10.0.0.0/33", "proxy.example"] {
        let text = format!("[listen]\nproxy_networks = [\"{network}\"]\n");
        let expected = format!("f.toml:2:1: listen.proxy_networks = [\"{network}\"]: {ALLOWED}");
        assert_said(&[(&text, &expected)]);
    }
    let networks = ("WEIR_LISTEN_PROXY_NETWORKS", "10.0.0.0/8, fd00::/8");
    let settings = load("", &[networks, ("WEIR_AUTH_ANONYMOUS", "true")]).unwrap();
    assert_eq!(settings.gateway.listen.proxy_networks.len(), 2);
    let expected =
        format!("WEIR_LISTEN_PROXY_NETWORKS: listen.proxy_networks = \"10.0.0.0\": {ALLOWED}");
    assert_eq!(load("", &[("WEIR_LISTEN_PROXY_NETWORKS", "10.0.0.0")]).unwrap_err(), expected);
}

#[test]
fn tls_is_read_and_refused() {
    assert_said(&[
        (
            "[tls]\nmin_version = \"1.1\"\n",
            "f.toml:2:15: tls.min_version = \"1.1\": allowed is \"1.2\" or \"1.3\"; did you mean 1.2?",
        ),
        (
            "[tls]\nclient_auth = \"require\"\n",
            "f.toml:2:15: tls.client_auth = \"require\": allowed is \"off\", \"optional\" or \"required\"; did you \
             mean required?",
        ),
        (
            "[tls]\nclient_identity = \"cn\"\n",
            "f.toml:2:19: tls.client_identity = \"cn\": allowed is \"none\", \"common_name\", \"san_dns\" or \
             \"san_uri\", \"none\" without client_auth",
        ),
        (
            "[tls]\nclient_auth = \"required\"\n",
            "f.toml:2:15: tls.client_ca = \"\": allowed is the path of a PEM file with the authorities of clients' \
             certificates, since tls.client_auth = \"required\"",
        ),
        (
            "[tls]\nticket_secret = 5171\n",
            "f.toml:2:17: tls.ticket_secret = (hidden): allowed is a text, 32 to 4096 bytes, or \"\" for a random one",
        ),
        (
            "[tls]\nticket_secret = \"5171\"\n",
            "f.toml:2:17: tls.ticket_secret = (4 bytes): allowed is 32 to 4096 bytes (openssl rand -hex 32), or an empty \
             text for a random one",
        ),
        (
            "[tls]\nticket_secrt = \"5171\"\n",
            "f.toml:2:1: tls.ticket_secrt = (hidden): no such key; did you mean tls.ticket_secret?",
        ),
        (
            "[[tls.certificates]]\ncertificate = \"a\"\n",
            "f.toml:1:1: tls.certificates[0].key = (absent): this key is required; allowed is a path, not empty",
        ),
        (
            "[listen]\ntls = [\"0.0.0.0:7443\"]\n[[auth.tokens]]\ntoken = \"t\"\n",
            "f.toml:2:1: tls.certificates = []: allowed is at least one certificate, since 0.0.0.0:7443 of listen.tls \
             is not on loopback: no authority has signed the development certificate; set [[tls.certificates]], or \
             tls.development_certificate_anywhere = true",
        ),
        (
            "[listen]\ntls = [\"localhost:7443\"]\n",
            "f.toml:2:1: listen.tls = [\"localhost:7443\"]: allowed is a list of addresses such as [\"0.0.0.0:7070\", \
             \"[::1]:7070\"]",
        ),
    ]);
}

/// The same as for keys outside of lists.
#[test]
fn every_range_of_a_member_is_checked() {
    let class = |member: &str, value: &str| {
        let value = if value.ends_with("ms") { format!("\"{value}\"") } else { value.to_owned() };
        load(&format!("[[topic_classes]]\npattern = \"a\"\n{member} = {value}\n"), &[])
    };
    let mut checked = 0;
    for (member, value) in weir::TopicClass::default().entries() {
        let Some((within, beyond)) = ends(member, value) else { continue };
        for allowed in within {
            assert!(class(member.name, &allowed).is_ok(), "{} = {allowed}", member.name);
        }
        for beyond in beyond {
            assert!(class(member.name, &beyond).is_err(), "{} = {beyond}", member.name);
        }
        checked += 1;
    }
    assert_eq!(checked, 4);
}

#[test]
fn a_section_within_another_is_read_and_refused() {
    let text = "[auth]\nanonymous = false\nexpiring_notice = \"2m\"\n\n[auth.jwt]\nissuer = \"i\"\nleeway = \"5s\"\n\n\
                [[auth.jwt.keys]]\nkid = \"a\"\nalgorithm = \"EdDSA\"\nfile = \"a.pem\"\n";
    let settings = load(text, &[("WEIR_AUTH_JWT_AUDIENCE", "weir")]).unwrap();
    let jwt = &settings.gateway.auth.jwt;
    assert_eq!((jwt.issuer.as_str(), jwt.audience.as_str()), ("i", "weir"));
    assert_eq!((jwt.leeway, jwt.keys.len()), (Duration::from_secs(5), 1));
    assert_eq!(jwt.keys[0].algorithm, weir::JwtAlgorithm::EdDsa);
    assert_eq!(deserialized(text).auth.jwt.keys, jwt.keys);
    assert_said(&[
        (
            "[auth.jwt]\nissuerz = \"i\"\n",
            "f.toml:2:1: auth.jwt.issuerz = (hidden): no such key; did you mean auth.jwt.issuer?",
        ),
        (
            "[[auth.jwt.issuers]]\nissuer = \"i\"\n",
            "f.toml:1:1: auth.jwt.issuers[0].upstream = (absent): this key is required; allowed is a text, the name of one of [[upstreams]]",
        ),
        (
            "[[auth.jwt.issuers]]\nissuer = \"i\"\nupstream = \"api\"\nfetch_interval = \"1ms\"\n",
            "f.toml:4:18: auth.jwt.issuers[0].fetch_interval = \"1ms\": allowed is 1s to 600s",
        ),
        (
            "[[auth.jwt.keys]]\nalgorithm = \"RS512\"\nfile = \"a\"\n",
            "f.toml:2:13: auth.jwt.keys[0].algorithm = \"RS512\": allowed is \"HS256\", \"RS256\", \"ES256\" or \"EdDSA\"",
        ),
        (
            "[[auth.jwt.keys]]\nalgorithm = \"RS256\"\n",
            "f.toml:1:1: auth.jwt.keys[0].file = (absent): this key is required; allowed is a path, not empty",
        ),
    ]);
}

//! The built program on the command line: its checks, outputs and refusals.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::PathBuf;
use std::process::{Command, Output};

/// Runs `weir` with these variables and no others of this process.
fn weir(args: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(args)
        .env_clear()
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// A file of the repository.
fn repository_file(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", name].iter().collect();
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_file_in_order_is_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    std::fs::write(&path, "[limits]\ntopics_max = 5\n").unwrap();

    let output = weir(&["config", "check", path.to_str().unwrap()], &[]);

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), "configuration is valid\n");
}

/// The check covers file and variables together, so it must list the variables that override the
/// file.
#[test]
fn a_check_says_which_variables_count_before_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    std::fs::write(&path, "[limits]\ntopics_max = 5\n[admin]\ntoken = \"one\"\n").unwrap();
    let path = path.to_str().unwrap();
    let variables = [
        ("WEIR_LIMITS_TOPICS_MAX", "6"),
        ("WEIR_ADMIN_TOKEN", "two"),
        ("WEIR_LOG_LEVEL", "warn"),
        ("WEIR_SERVICE_HOST", "10.0.0.1"),
    ];
    let output = weir(&["config", "check", path], &variables);
    let expected = format!(
        "configuration is valid\nenvironment variables override the file:\n  \
         WEIR_ADMIN_TOKEN sets admin.token instead of {path}:4:9\n  \
         WEIR_LIMITS_TOPICS_MAX sets limits.topics_max instead of {path}:2:14\n  \
         WEIR_LOG_LEVEL sets log.level\n"
    );
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), expected.as_str()));
}

#[test]
fn a_bad_file_is_refused_by_check_and_by_serve_alike() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    std::fs::write(&path, "[limits]\ntopics_max = 0\n").unwrap();
    let path = path.to_str().unwrap();
    let expected = format!("weir: {path}:2:14: limits.topics_max = 0: allowed is 1 to 16777216\n");

    for (args, variables) in [
        (vec!["config", "check", path], vec![]),
        (vec!["config", "check"], vec![("WEIR_CONFIG", path)]),
        (vec!["serve", "--config", path], vec![]),
        (vec!["--config", path], vec![]),
        (vec![], vec![("WEIR_CONFIG", path)]),
    ] {
        let output = weir(&args, &variables);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert_eq!(stderr(&output), expected, "{args:?}");
        assert_eq!(stdout(&output), "", "{args:?}");
    }
}

/// Certificates of every kind that a configuration names, in a directory.
fn certificates() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        std::fs::write(directory.path().join(name), text).unwrap();
    };
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    write("chain.pem", made.cert.pem());
    write("key.pem", made.signing_key.serialize_pem());
    write("other.pem", rcgen::KeyPair::generate().unwrap().serialize_pem());
    let mut params = rcgen::CertificateParams::new([]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    write("ca.pem", params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem());
    write("empty.pem", String::new());
    directory
}

#[test]
fn files_for_tls_are_refused_by_check_and_by_serve_alike() {
    let directory = certificates();
    let path = directory.path().join("weir.toml");
    let run = |command: &[&str], tls: &str| {
        let listen = "[listen]\ntcp = [\"127.0.0.1:0\"]\ntls = [\"127.0.0.1:0\"]\nhttp = []\nudp = []\nadmin = \"127.0.0.1:0\"\n";
        std::fs::write(
            &path,
            format!("{listen}[store]\nkind = \"none\"\n[log]\nlevel = \"off\"\n{tls}"),
        )
        .unwrap();
        let mut weir = Command::new(env!("CARGO_BIN_EXE_weir"));
        weir.args(command).arg(&path).current_dir(&directory).env_clear();
        weir.output().unwrap()
    };
    let with = |chain: &str, key: &str, tls: &str| {
        let of = format!("[[tls.certificates]]\ncertificate = \"{chain}\"\nkey = \"{key}\"\n");
        format!("[tls]\n{tls}\n{of}")
    };
    let clients = "client_auth = \"required\"\nclient_ca = ";
    for (tls, expected) in [
        (
            with("none.pem", "key.pem", ""),
            "tls.certificates[0].certificate: none.pem: cannot be read: No such file or directory (os error 2)",
        ),
        (
            with("chain.pem", "other.pem", ""),
            "tls.certificates[0].key: other.pem: the key does not belong to the certificate in chain.pem (keys may not \
             be consistent: KeyMismatch)",
        ),
        (
            with("chain.pem", "key.pem", &format!("{clients}\"empty.pem\"")),
            "tls.client_ca: empty.pem: holds no \"BEGIN CERTIFICATE\" section",
        ),
        (
            with("chain.pem", "key.pem", &format!("{clients}\"ca.pem\"\nclient_crl = \"ca.pem\"")),
            "tls.client_crl: ca.pem: holds no \"BEGIN X509 CRL\" section",
        ),
        (
            "[tls]\ndevelopment_directory = \"chain.pem\"\n".to_owned(),
            "tls.development_directory: chain.pem/development.pem: cannot be read: Not a directory (os error 20)",
        ),
    ] {
        let (check, serve) = (run(&["config", "check"], &tls), run(&["serve", "--config"], &tls));
        assert_eq!(stderr(&check), format!("weir: {expected}\n"));
        assert_eq!(stderr(&serve), stderr(&check));
        assert_eq!((check.status.code(), serve.status.code()), (Some(2), Some(1)), "{expected}");
    }
}

/// A check creates nothing, and reads no files of listeners that are off.
#[test]
fn a_check_leaves_files_alone() {
    let directory = certificates();
    let state = directory.path().join("state");
    let state = state.to_str().unwrap();
    let variables = [("WEIR_LISTEN_TLS", "127.0.0.1:0"), ("WEIR_TLS_DEVELOPMENT_DIRECTORY", state)];
    let output = weir(&["config", "check"], &variables);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!std::path::Path::new(state).exists());

    let path = directory.path().join("weir.toml");
    let certificates = "[[tls.certificates]]\ncertificate = \"none.pem\"\nkey = \"none.pem\"\n";
    std::fs::write(&path, certificates).unwrap();
    let output = weir(&["config", "check", path.to_str().unwrap()], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_bad_variable_is_refused() {
    let output = weir(&["config", "check"], &[("WEIR_LOG_FORMAT", "xml")]);

    assert_eq!(output.status.code(), Some(2));
    let expected = "weir: WEIR_LOG_FORMAT: log.format = \"xml\": allowed is \"text\" or \"json\"\n";
    assert_eq!(stderr(&output), expected);
}

#[test]
fn the_configuration_page_is_fresh() {
    let output = weir(&["config", "reference", "--markdown"], &[]);
    assert!(
        stdout(&output) == repository_file("docs/configuration.md"),
        "docs/configuration.md is stale: weir config reference --markdown > docs/configuration.md"
    );
}

#[test]
fn the_room_of_the_repository_loads_and_shows_its_classes() {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "weir.toml"].iter().collect();

    let output = weir(&["config", "check", path.to_str().unwrap()], &[]);

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let lines: Vec<_> = stdout(&output).lines().collect();
    assert_eq!(lines.first(), Some(&"configuration is valid"));
    let patterns: Vec<_> =
        lines.iter().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    let expected =
        ["room/*", "live/*", "fleet/{device}/state", "fleet/{device}/orders", "stats/*", "*"];
    assert_eq!(patterns, expected);
    assert!(!stdout(&output).contains("REPLACE"), "tokens are not shown");
}

#[test]
fn the_reference_as_a_file_loads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.toml");
    std::fs::write(&path, weir(&["config", "reference", "--toml"], &[]).stdout).unwrap();

    let output = weir(&["config", "check", path.to_str().unwrap()], &[]);

    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn the_version_is_that_of_the_package() {
    let output = weir(&["version"], &[]);
    assert_eq!(stdout(&output), concat!("weir ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn publish_says_that_nobody_listens() {
    // Bound and closed again, so most likely free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();

    let output = weir(&["publish", "--all", "--text", "hi", "--admin", &port.to_string()], &[]);

    assert_eq!(output.status.code(), Some(1));
    let expected = format!("weir: cannot connect to the admin API at {port}: Connection refused");
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
}

#[test]
fn publish_wants_one_target_and_one_payload() {
    for args in [
        vec!["publish", "--text", "hi"],
        vec!["publish", "--all"],
        vec!["publish", "--all", "--topic", "t", "--text", "hi"],
        vec!["publish", "--all", "--text", "hi", "--data", "aGk="],
    ] {
        let output = weir(&args, &[]);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

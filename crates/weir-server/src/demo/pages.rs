//! The page `/demo`: a chat and a live map of the game room, for any browser.
//!
//! It has no build step: an HTML file, a module and a style sheet, which are part of the program.

use weir::AdminPage;

use super::setup::Setup;

/// All files of the page, and the certificate that clients of the TLS listener must trust.
pub(super) fn all(setup: &Setup) -> [AdminPage; 5] {
    let gateway = format!("ws://127.0.0.1:{}", setup.ports.http);
    let html = include_str!("page/index.html").replace("{gateway}", &gateway);
    let page = |path: &str, content_type: &str, body: &str| AdminPage {
        path: path.to_owned(),
        content_type: content_type.to_owned(),
        body: body.as_bytes().to_vec(),
        connects_to: Vec::new(),
    };
    [
        AdminPage {
            connects_to: vec![gateway.clone()],
            ..page("/demo", "text/html; charset=utf-8", &html)
        },
        page("/demo/demo.js", "text/javascript; charset=utf-8", include_str!("page/demo.js")),
        page("/demo/demo.css", "text/css; charset=utf-8", include_str!("page/demo.css")),
        page("/demo/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
        page("/demo/ca.pem", "application/x-pem-file", &setup.certificate),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_page_names_the_gateway_and_only_files_that_are_there() -> anyhow::Result<()> {
        let scratch = Scratch::new("demo-test")?;
        let pages = all(&Setup::new(&scratch)?);
        let html = String::from_utf8_lossy(&pages[0].body);
        assert!(!html.contains("{gateway}"), "{html}");
        assert!(html.contains(&format!("content=\"{}\"", pages[0].connects_to[0])), "{html}");
        for reference in html.split("\"/demo/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            let path = format!("/demo/{name}");
            assert!(pages.iter().any(|page| page.path == path), "{path}");
        }
        assert!(
            pages.iter().all(|page| !String::from_utf8_lossy(&page.body).contains("PRIVATE KEY"))
        );
        Ok(())
    }
}

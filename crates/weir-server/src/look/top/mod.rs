//! `weir top`: the figures of a running gateway, each second.

mod figures;
mod screen;

use std::io::{IsTerminal as _, stdout};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::sleep;

use super::args::TopArgs;
use crate::http::{Api, NO_GATEWAY};
use crate::output::say;
use crate::sse::EventStream;
use figures::{Change, Figures};
use screen::Screen;

pub(crate) async fn run(args: TopArgs, file: Option<PathBuf>) -> Result<()> {
    let TopArgs { json, once, api } = args;
    let api = Api::find(api, file)?;
    if json {
        return print_documents(&api, once).await;
    }
    if once {
        return print_once(&api).await;
    }
    if !stdout().is_terminal() {
        bail!("standard output is no terminal: use --once for one look, or --json for programs");
    }
    // Before the screen changes: a refusal is told as usual.
    let stream = EventStream::open(&api, PATH).await?;
    let terminal = ratatui::try_init().context("cannot use the terminal")?;
    let watched = watch(&api, stream, terminal).await;
    ratatui::restore();
    watched
}

/// Prints the documents as they come, one line each.
async fn print_documents(api: &Api, once: bool) -> Result<()> {
    let mut stream = EventStream::open(api, PATH).await?;
    loop {
        say(document(&mut stream).await?)?;
        if once {
            return Ok(());
        }
    }
}

/// Prints the figures of one second.
async fn print_once(api: &Api) -> Result<()> {
    let mut stream = EventStream::open(api, PATH).await?;
    let before = figures(&document(&mut stream).await?)?;
    let now = figures(&document(&mut stream).await?)?;
    let change = Change::new(&before, &now);
    say(change.head().0)?;
    let panels = [
        change.connections(),
        change.messages(),
        change.delays(),
        change.process(),
        change.shards(),
    ];
    for panel in panels.into_iter().chain(change.upstreams()).chain([change.ends()]) {
        say(format_args!("\n{}\n{}", panel.title, panel.lines.join("\n")))?;
    }
    Ok(())
}

/// Shows the figures until a key or a signal ends it. After a broken stream it connects again.
async fn watch(api: &Api, stream: EventStream, mut terminal: DefaultTerminal) -> Result<()> {
    let mut keys = keys();
    let mut terminated = signal(SignalKind::terminate()).context("cannot listen to signals")?;
    let (mut screen, mut stream) = (Screen::default(), Some(stream));
    let (mut before, mut now) = (None::<Figures>, None::<Figures>);
    let mut trouble: Option<String> = None;
    loop {
        tokio::select! {
            next = next_figures(api, &mut stream) => match next {
                Ok(next) => {
                    (before, trouble) = (now.replace(next), None);
                    if let (Some(before), Some(now)) = (&before, &now) {
                        screen.note(&Change::new(before, now));
                    }
                }
                Err(error) => {
                    stream = None;
                    trouble = Some(format!("{error:#}"));
                }
            },
            key = keys.recv() => match key {
                Some(Key::Quit) | None => return Ok(()),
                Some(Key::Tab) => screen.turns += 1,
                Some(Key::Resized) => {}
            },
            _ = terminated.recv() => return Ok(()),
        }
        if let Some(now) = &now {
            let change = Change::new(before.as_ref().unwrap_or(now), now);
            terminal.draw(|frame| screen.draw(frame, &change, trouble.as_deref()))?;
        }
    }
}

/// The next figures. Without a stream it opens one, after a pause.
async fn next_figures(api: &Api, stream: &mut Option<EventStream>) -> Result<Figures> {
    let open = match stream {
        Some(open) => open,
        None => {
            sleep(RETRY_AFTER).await;
            stream.insert(EventStream::open(api, PATH).await?)
        }
    };
    figures(&document(open).await?)
}

async fn document(stream: &mut EventStream) -> Result<String> {
    let event = stream.next().await?;
    let event = event.context("the gateway has ended the stream: it shuts down, or has ended")?;
    Ok(event.data)
}

fn figures(document: &str) -> Result<Figures> {
    serde_json::from_str(document).context(NO_GATEWAY)
}

/// What the person at the terminal wants.
enum Key {
    Quit,
    Tab,
    /// The terminal has another size.
    Resized,
}

/// Reads keys on a thread of its own, which ends with the process: the read cannot be cancelled.
fn keys() -> Receiver<Key> {
    let (sender, receiver) = channel(KEYS_WAITING_MAX);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if let Some(key) = key_of(&event)
                && sender.blocking_send(key).is_err()
            {
                return;
            }
        }
    });
    receiver
}

fn key_of(event: &Event) -> Option<Key> {
    if let Event::Resize(..) = event {
        return Some(Key::Resized);
    }
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return None;
    };
    let is_break = *code == KeyCode::Char('c') && modifiers.contains(KeyModifiers::CONTROL);
    if is_break || matches!(code, KeyCode::Char('q') | KeyCode::Esc) {
        return Some(Key::Quit);
    }
    (*code == KeyCode::Tab).then_some(Key::Tab)
}

const PATH: &str = "/v1/stats/stream";
const RETRY_AFTER: Duration = Duration::from_secs(1);
const KEYS_WAITING_MAX: usize = 16;

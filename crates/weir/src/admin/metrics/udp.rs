//! The metrics of datagrams.

use std::fmt;

use super::Gateway;
use super::families::Families;
use crate::admin::process::udp_of_machine;
use crate::observe::counters::udp::Count;

impl Gateway {
    pub(super) fn udp(&self, to: &mut Families<'_>) -> fmt::Result {
        let counts = &self.handle.counters().udp;
        let labelled = |name: &'static str, labels: &[(&'static str, Count)]| {
            labels
                .iter()
                .map(|(word, count)| ([(name, *word)], counts.get(*count)))
                .collect::<Vec<_>>()
        };
        to.counter(
            "weir_udp_received",
            "Datagrams that came on listen.udp.",
            counts.get(Count::Received),
        )?;
        to.counter("weir_udp_sent", "Datagrams that left as answers.", counts.get(Count::Sent))?;
        to.counters(
            "weir_udp_done",
            "Requests by datagrams that were done, by what they asked for; those answered from memory are not counted.",
            labelled("kind", &Count::DONE),
        )?;
        to.counters(
            "weir_udp_refused",
            "Requests by datagrams that were refused, by cause; `rate`, `answer`, `foreign` and `source` were not answered.",
            labelled("cause", &Count::REFUSED),
        )?;
        to.counters(
            "weir_udp_malformed",
            "Datagrams that are malformed requests, by the field at fault.",
            counts.malformed().map(|(field, count)| ([("field", field.name())], count)),
        )?;
        to.counters(
            "weir_udp_duplicates",
            "Requests by datagrams that had been made before: answered from memory, or while the first was in progress.",
            labelled("how", &[("repeated", Count::Repeated), ("joined", Count::Joined)]),
        )?;
        to.counter(
            "weir_udp_forgotten",
            "Answers forgotten before `udp.duplicate_window` was over, as there were more than `udp.duplicates_max`.",
            counts.get(Count::Forgotten),
        )?;
        to.counter(
            "weir_udp_too_short",
            "Datagrams that were not answered, as the answer would have been more than three times as long.",
            counts.get(Count::TooShort),
        )?;
        to.counter(
            "weir_udp_token_checks",
            "Tokens of calls that were looked up, because no thread remembered them.",
            counts.get(Count::Checks),
        )?;
        to.gauge(
            "weir_udp_waiting",
            "Requests by datagrams that wait for the front.",
            counts.waiting(),
        )?;
        self.udp_kernel(to)
    }

    fn udp_kernel(&self, to: &mut Families<'_>) -> fmt::Result {
        let counts = &self.handle.counters().udp;
        to.counter(
            "weir_udp_lost",
            "Datagrams that the kernel threw away because a socket's receive buffer was full.",
            counts.lost(),
        )?;
        to.counters(
            "weir_udp_errors",
            "Failures of the kernel to receive, and answers that it refused to send.",
            [("receive", Count::ReceiveErrors), ("send", Count::SendErrors)]
                .map(|(on, count)| ([("on", on)], counts.get(count))),
        )?;
        to.gauges(
            "weir_udp_queued_bytes",
            "Bytes of a socket's receive buffer that are taken.",
            counts
                .queued_bytes()
                .into_iter()
                .enumerate()
                .map(|(socket, bytes)| ([("socket", socket.to_string())], bytes)),
        )?;
        let Some(machine) = udp_of_machine() else { return Ok(()) };
        to.counters(
            "weir_machine_udp",
            "Datagrams of the whole machine, or network namespace, that reached nobody: their port was unknown, or a \
             receive buffer full.",
            [("unknown_port", machine.unknown_port), ("buffer_full", machine.buffer_full)]
                .map(|(cause, count)| ([("cause", cause)], count)),
        )
    }
}

//! Calls of backends to devices, at whichever node these are.

use weir_wire::v1;

use crate::backends::calls::{DeviceCall, NoAnswer};
use crate::core::state::SharedState;
use crate::observe::counters::calls::{CallDirection, CallOutcome};

impl SharedState {
    /// Calls a device and waits for its answer, at most until the call's deadline. To drop the
    /// future gives the call up.
    ///
    /// In a cluster, a device that is not here, or answers no calls here, is looked for at the other
    /// nodes.
    pub(crate) async fn call_device(
        &self,
        device: &str,
        call: &DeviceCall,
    ) -> Result<v1::Answer, NoAnswer> {
        if let (Some(node), false) = (&self.node, self.answers_calls(device))
            && let Some(answered) = node.call_elsewhere(device, call).await
        {
            return answered;
        }
        self.call_here(device, call).await
    }

    /// Calls a device that is connected to this node.
    pub(in crate::core) async fn call_here(
        &self,
        device: &str,
        call: &DeviceCall,
    ) -> Result<v1::Answer, NoAnswer> {
        let conns = self.devices.connections_of(device).unwrap_or_default();
        if conns.is_empty() {
            let outcome = CallOutcome::Disconnected;
            self.counters().calls.refuse(CallDirection::ToDevice, outcome);
            return Err(NoAnswer::NotConnected);
        }
        self.calls.ask_device(&conns, call).await
    }

    /// Whether a connection of the device to this node answers calls.
    pub(in crate::core) fn answers_calls(&self, device: &str) -> bool {
        let conns = self.devices.connections_of(device).unwrap_or_default();
        self.calls.are_answered(&conns)
    }
}

//go:build tools

// Package nats pins the NATS server that `cargo xtask bench` builds: go.mod and go.sum name each module's version.
package nats

import _ "github.com/nats-io/nats-server/v2"

//go:build tools

// Package suite names the conformance suite that the tests run, so that go.mod keeps its version.
package suite

import _ "github.com/summerwind/h2spec/cmd/h2spec"

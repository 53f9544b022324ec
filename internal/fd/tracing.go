// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fd

import (
	"os"
	"strings"
)

// tracing reports whether this is a test binary, as "go test" names them. The
// package testing would tell too, but would then be part of every binary.
func tracing() bool { return strings.HasSuffix(os.Args[0], ".test") }

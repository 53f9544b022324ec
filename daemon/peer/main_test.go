// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package peer

import (
	"testing"

	"github.com/wcache/wcache/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

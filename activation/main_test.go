// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation_test

import (
	"os"
	"testing"

	"github.com/wcache/wcache/internal/testmain"
)

// TestMain is also the service of [TestFiles], which starts this program again.
func TestMain(m *testing.M) {
	if os.Getenv("ACTIVATION_TEST_SERVICE") != "" {
		service()
		return
	}
	testmain.Run(m)
}

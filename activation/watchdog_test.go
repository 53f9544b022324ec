// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package activation_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/wcache/wcache/internal/testmain"
)

// A daemon that answers nothing would not be killed, or one that is well would be.
func TestWatch(t *testing.T) {
	path := filepath.Join(shortDir(t), "notify")
	m := newManager(t, path)
	n, err := start(t, "NOTIFY_SOCKET="+path, "WATCHDOG_USEC=30000")
	if err != nil {
		t.Fatal(err)
	}
	var log testmain.Log
	var ill atomic.Bool
	ill.Store(true)
	stop := n.Watch(t.Context(), func(context.Context) error {
		if ill.Load() {
			return errors.New("it is ill")
		}
		return nil
	}, slog.New(slog.NewTextHandler(&log, nil)))
	testmain.Eventually(t, "an error of the check is logged", func() bool { return strings.Contains(log.String(), `msg="watchdog is not told" err="it is ill"`) })
	if list := m.all(t); len(list) > 0 {
		t.Errorf("the manager was told %+v", list)
	}
	ill.Store(false)
	testmain.Eventually(t, "the manager is told", func() bool {
		list := m.all(t)
		return len(list) > 0 && list[0] == message{"WATCHDOG=1", 0}
	})
	stop()
	m.all(t)
	if list := m.all(t); len(list) > 0 {
		t.Errorf("after the end the manager was told %+v", list)
	}
}

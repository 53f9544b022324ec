// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/wcache/wcache/device"
	"github.com/wcache/wcache/loader"
)

// gpuGone is the error of a load on a GPU that is lost or has to be reset.
type gpuGone struct{ health device.GPU }

func (e *gpuGone) Error() string {
	name := e.health.UUID
	if e.health.Name != "" {
		name = fmt.Sprintf("%s (%s)", name, e.health.Name)
	}
	//diag loading NAME STATE
	// The GPU has fallen off the bus or has to be reset, and its memory is lost. The kernel's log
	// says why; reset it with `nvidia-smi --gpu-reset`, or restart the machine. The service goes on
	// by itself when the GPU works again.
	return fmt.Sprintf("GPU %s is %s: nothing can be loaded, and what was held is gone", name, e.health.State)
}

// Advice is the driver's reason.
func (e *gpuGone) Advice() string { return e.health.Reason }

// usable reports why the GPU can't be used now, nil if it can. If the last check found it
// well, usable doesn't wait for the next one, which runs beside the load.
func (l *loads) usable(ctx context.Context) error {
	last, _ := l.gpu.health()
	if last == nil || !last.Gone() {
		l.gpu.look(l.ctx, lookEvery)
		return nil
	}
	l.gpu.wait(ctx, l.gpu.look(l.ctx, lookAgain))
	if last, _ = l.gpu.health(); last.Gone() {
		return &gpuGone{*last}
	}
	return nil
}

// blame gives the error of a load, or a gpuGone if a GPU check that begins after moment
// finds that the GPU caused it.
func (l *loads) blame(ctx context.Context, err error, moment time.Time) error {
	var failed *loader.Error
	var slow *tooSlow
	if errors.As(err, &failed) {
		switch failed.Kind {
		case loader.KindFailed, loader.KindDied, loader.KindNoDevice:
		default:
			return err
		}
	} else if !errors.As(err, &slow) {
		return err
	}
	if h := l.gpu.after(ctx, l.ctx, moment); h != nil && h.Gone() {
		return &gpuGone{*h}
	}
	return err
}

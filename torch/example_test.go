// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package torch_test

import (
	"bytes"
	"fmt"
	"log"

	"github.com/wcache/wcache/protocol"
	"github.com/wcache/wcache/tensor"
	"github.com/wcache/wcache/torch"
)

// One tensor in the memory of a file that process 4711 has open as descriptor 7, as an
// engine is told of it.
func Example() {
	table := &tensor.Table{
		Segment:  4096,
		Storages: []tensor.Storage{{Offset: 512, Bytes: 64}},
		Tensors:  []tensor.Tensor{{Name: "w", Kind: tensor.Param, DType: tensor.BF16, Shape: []int64{4, 8}, Stride: []int64{8, 1}}},
	}
	state := protocol.State{Module: protocol.DefaultModule, Table: table}
	message, err := protocol.EncodeState(state, torch.Mapped{PID: 4711, FD: 7})
	if err != nil {
		log.Fatal(err)
	}
	var wire bytes.Buffer
	if err := protocol.WriteMessage(&wire, message, nil); err != nil {
		log.Fatal(err)
	}

	payload, err := protocol.ReadFrame(&wire, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	reply, err := protocol.DecodeReply(payload)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range reply.Entries {
		fmt.Println(e.Name, e.DType, e.Shape, "at element", e.Offset, "of", e.Path)
	}
	// Output:
	// w BF16 [4 8] at element 256 of /proc/4711/fd/7
}

// On a GPU the descriptors of a segment are one handle, which torch reads by its version.
func ExampleHeaderFor() {
	for _, release := range []string{"0.30.0", "0.33.0", "0.99.0"} {
		header, known := torch.HeaderFor(release)
		fmt.Println(release, header, known)
	}
	// Output:
	// 0.30.0 3 true
	// 0.33.0 3 true
	// 0.99.0 0 false
}

// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package daemon

import (
	"github.com/wcache/wcache/fingerprint"
	"github.com/wcache/wcache/resolve"
)

func (s *Server) started(p peer, key fingerprint.Key) (*resolve.Started, error) { return nil, nil }

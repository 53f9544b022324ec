// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package fingerprint

import (
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/wcache/wcache/weights/hfconfig"
)

// RopePayload is the text that vLLM hashes for rope_parameters_hash:
// hash_rope_parameters of its protocol.py. The error is an [*Uncomputable].
func RopePayload(c *hfconfig.Config) (string, error) {
	if err := c.Check(hfconfig.RopeParameters); err != nil {
		return "", &Uncomputable{Field: "rope_parameters_hash", Reason: err.Error()}
	}
	var rope any // null without parameters
	if c.Rope != nil {
		rope = map[string]any(c.Rope)
	}
	return string(appendPython(nil, integral(map[string]any{
		"max_position_embeddings": c.MaxPositions,
		"rope_parameters":         rope,
	}))), nil
}

// QuantPayload is the text that vLLM 0.32 and later hash for quant_config_hash, if the
// engine has no quantization option. The error is an [*Uncomputable].
func QuantPayload(c *hfconfig.Config) (string, error) {
	q, err := quantConfig(c)
	if err != nil {
		return "", err
	}
	return string(appendPython(nil, map[string]any{"checkpoint": q, "runtime": nil})), nil
}

// firstQuantPayload is that text in vLLM 0.30 and 0.31; "" means that they compute no
// hash.
func firstQuantPayload(c *hfconfig.Config) (string, error) {
	q, err := quantConfig(c)
	if q == nil || err != nil {
		return "", err
	}
	return string(appendPython(nil, q)), nil
}

// quantConfig is the quantization_config that goes into the key. Before that, vLLM
// writes its own spelling of quant_method into it, see _normalize_quantization_config
// of its model_arch_config_convertor.py. nil means that there is none.
func quantConfig(c *hfconfig.Config) (any, error) {
	uncomputable := func(format string, args ...any) (any, error) {
		return nil, &Uncomputable{Field: "quant_config_hash", Reason: fmt.Sprintf(format, args...)}
	}
	if err := c.Check(hfconfig.Quantization); err != nil {
		return uncomputable("%v", err)
	}
	given, _ := c.Quantization.(map[string]any)
	if given == nil {
		return nil, nil
	}
	q := maps.Clone(given)
	method, ok := q["quant_method"].(string)
	if !ok && has(q, "quant_method") {
		return uncomputable("quant_method is %s, not a string", hfconfig.Show(q["quant_method"]))
	}
	algo, err := modelOpt(q)
	if err != nil {
		return uncomputable("%v", err)
	}
	if algo != nil {
		name, _ := algo.(string)
		if method, ok = modelOptMethods[strings.ToUpper(name)]; !ok {
			return uncomputable("ModelOpt's quant_algo %s is not known", hfconfig.Show(algo))
		}
	}
	q["quant_method"] = strings.ReplaceAll(strings.ToLower(method), "compressed_tensors", "compressed-tensors")
	return q, nil
}

var modelOptMethods = map[string]string{
	"FP8":                       "modelopt",
	"FP8_PER_CHANNEL_PER_TOKEN": "modelopt",
	"FP8_PB_WO":                 "modelopt",
	"NVFP4":                     "modelopt_fp4",
	"MIXED_PRECISION":           "modelopt_mixed",
}

func has(m map[string]any, key string) bool { _, ok := m[key]; return ok }

// modelOpt is the quant_algo of a configuration that ModelOpt wrote, else nil. It is an
// error if a value that vLLM would take for an object is of another type.
func modelOpt(q map[string]any) (any, error) {
	producer, ok := q["producer"].(map[string]any)
	if !ok && has(q, "producer") {
		return nil, fmt.Errorf("producer is %s, not an object", hfconfig.Show(q["producer"]))
	}
	inner, ok := q["quantization"].(map[string]any)
	ours := producer["name"] == "modelopt"
	if !ok && ours && has(q, "quantization") {
		return nil, fmt.Errorf("quantization is %s, not an object", hfconfig.Show(q["quantization"]))
	}
	if !ours && !has(inner, "modelopt_quant_config") {
		return nil, nil
	}
	return inner["quant_algo"], nil
}

// integral turns floats without a fraction into integers, as vLLM does for rope:
// JSON distinguishes 10000 from 10000.0, frequencies don't.
func integral(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsInf(v, 0) || v != math.Trunc(v) { // NaN differs from itself
			return v
		}
		n, _ := big.NewFloat(v).Int(nil)
		return n
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = integral(v[i])
		}
		return list
	case map[string]any:
		m := make(map[string]any, len(v))
		for key := range v {
			m[key] = integral(v[key])
		}
		return m
	}
	return v
}

// appendPython writes JSON as Python's json.dumps(v, sort_keys=True) does.
func appendPython(b []byte, v any) []byte {
	switch v := v.(type) {
	case bool:
		return strconv.AppendBool(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case *big.Int:
		return v.Append(b, 10)
	case float64:
		return appendFloat(b, v)
	case string:
		return appendString(b, v)
	case []any:
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ", "...)
			}
			b = appendPython(b, x)
		}
		return append(b, ']')
	case map[string]any:
		b = append(b, '{')
		for i, key := range slices.Sorted(maps.Keys(v)) { // UTF-8 sorts like code points
			if i > 0 {
				b = append(b, ", "...)
			}
			b = append(appendString(b, key), ": "...)
			b = appendPython(b, v[key])
		}
		return append(b, '}')
	}
	return append(b, "null"...)
}

// appendFloat is Python's repr of a float: the shortest digits that read back,
// with an exponent outside of 1e-4 to 1e16.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	start := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	if !slices.Contains(b[start:], '.') {
		b = append(b, ".0"...)
	}
	return b
}

// appendString quotes a string in ASCII, as json.dumps does by default.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\b':
			b = append(b, `\b`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r >= ' ' && r <= '~':
			b = append(b, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			b = fmt.Appendf(b, `\u%04x\u%04x`, high, low)
		default:
			b = fmt.Appendf(b, `\u%04x`, r)
		}
	}
	return append(b, '"')
}

// SPDX-FileCopyrightText: The wcache authors
// SPDX-License-Identifier: MIT

package control_test

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/wcache/wcache/control"
	"github.com/wcache/wcache/control/schematest"
	"github.com/wcache/wcache/fingerprint"
)

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	s, err := schematest.Read("status.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The schema and the Go type have the same fields, of the same types, and optional
// fields are not required.
func TestSchemaFields(t *testing.T) {
	compare(t, "$", schema(t), reflect.TypeFor[control.Status]())
}

func compare(t *testing.T, at string, s *jsonschema.Schema, typ reflect.Type) {
	t.Helper()
	for s.Ref != nil {
		s = s.Ref
	}
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	kind := map[reflect.Kind]string{
		reflect.Struct: "object", reflect.Map: "object", reflect.Slice: "array", reflect.String: "string", reflect.Bool: "boolean",
		reflect.Int: "integer", reflect.Int64: "integer", reflect.Float64: "number",
	}[typ.Kind()]
	switch typ {
	case reflect.TypeFor[time.Time]():
		kind = "string"
	case reflect.TypeFor[fingerprint.Key]():
		return // any object
	}
	if s.Types != nil && !slices.Equal(s.Types.ToStrings(), []string{kind}) { // nil of a const or enum
		t.Errorf("%s is %v in the schema and %v in Go", at, s.Types, typ)
	}
	switch {
	case kind == "array":
		compare(t, at+"[]", s.Items2020, typ.Elem())
		return
	case typ.Kind() != reflect.Struct || kind == "string":
		return
	}
	var fields []string
	for i := range typ.NumField() {
		name, options, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		fields = append(fields, name)
		property := s.Properties[name]
		if property == nil {
			continue // told below
		}
		if may := strings.HasPrefix(options, "omit"); may == slices.Contains(s.Required, name) {
			t.Errorf("%s.%s: required is %v in the schema, and Go has %q", at, name, !may, options)
		}
		compare(t, at+"."+name, property, typ.Field(i).Type)
	}
	slices.Sort(fields)
	if diff := cmp.Diff(fields, slices.Sorted(maps.Keys(s.Properties))); diff != "" {
		t.Errorf("%s: -Go +schema:\n%s", at, diff)
	}
}

// The schema accepts a status and refuses other JSON.
func TestSchemaValidates(t *testing.T) {
	s := schema(t)
	const whole = `{"schema":1,"instance":"0","state":"idle","version":{"client":"v"},"socket":"/s","device":{"kind":""},"problems":[],"bytes":0,` +
		`"counts":{"hits":0,"loads":0,"failed":0,"refused":0,"misses":{"new":1},"loaded_bytes":0,"load_seconds":0.5},"entries":[]}`
	for _, tt := range []struct{ old, with, want string }{
		{"", "", ""},
		{`"schema":1`, `"schema":2`, "value must be 1"},
		{`"entries":[]`, `"entries":null`, "got null, want array"},
		{`"idle"`, `"asleep"`, "value must be one of"},
		{`"bytes":0,`, ``, "missing property 'bytes'"},
		{`"bytes":0,`, `"bytes":0.5,`, "got number, want integer"},
		{`"bytes":0,`, `"bytes":-1,`, "want 0"},
		{`"bytes":0,`, `"bytes":0,"new":1,`, ""}, // fields are added
		{`"new":1`, `"new":"1"`, "got string, want integer"},
		{`"bytes":0,`, `"bytes":0,"since":"yesterday",`, "not valid date-time"},
		{`"entries":[]`, `"entries":[{}]`, "/entries/0"},
	} {
		err := schematest.Validate(s, []byte(strings.Replace(whole, tt.old, tt.with, 1)))
		if tt.want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s as %s: got %v, want %s", tt.old, tt.with, err, tt.want)
		}
	}
}

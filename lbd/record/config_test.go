package record

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"skyserve/lbd/core"
	"skyserve/lbd/policy"
)

// odd returns a configuration in which no field has its zero value or its default.
func odd(t *testing.T) core.Config {
	t.Helper()
	p, err := policy.New("longest-prefix")
	if err != nil {
		t.Fatal(err)
	}
	c := core.Config{Policy: p, Push: core.PushMode{Kind: core.PushOutstanding, N: 7}}
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		unzero(v.Field(i), int64(i)+3)
	}
	return c
}

// unzero sets zero values to other values, including fields of a struct and elements of a map.
func unzero(v reflect.Value, n int64) {
	if !v.IsZero() {
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(n)
	case reflect.Float64:
		v.SetFloat(float64(n) / 2)
	case reflect.String:
		v.SetString("edf")
	case reflect.Struct:
		for i := range v.NumField() {
			unzero(v.Field(i), n+int64(i))
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		unzero(key, n)
		unzero(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	}
}

// The record contains the complete configuration: a field of core.Config that is missing here would
// make records that do not replay.
func TestRecordConfigCoversCoreConfig(t *testing.T) {
	want := odd(t)
	v := reflect.ValueOf(want)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("the test does not fill %s", v.Type().Field(i).Name)
		}
	}
	written, err := json.Marshal(NewConfig(&want))
	if err != nil {
		t.Fatal(err)
	}
	var read Config
	if err := json.Unmarshal(written, &read); err != nil {
		t.Fatal(err)
	}
	got, err := read.Core()
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("wrote %s, read\n%+v, want\n%+v", written, got, want)
	}
}

func TestInvalidRecordConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"config.policy": {Policy: "best", Push: "pending"},
		"config.push":   {Policy: "cost", Push: "hard"},
		"config.order":  {Policy: "cost", Push: "pending", Order: "lifo"},
	} {
		if _, err := c.Core(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want an error that names %s", c, err, name)
		}
	}
	good := core.DefaultConfig(odd(t).Policy)
	c := NewConfig(&good)
	if _, err := c.Core(); err != nil || c.MaxWait != 60*time.Second {
		t.Errorf("the defaults: %v", err)
	}
}

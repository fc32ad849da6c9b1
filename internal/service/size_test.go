package service

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"1KiB": 1024, "512MiB": 536870912, "2GiB": 2147483648, "1TiB": 1099511627776, "1536MiB": 1610612736, "8388607TiB": 8388607 << 40, "1073741823KiB": 1073741823 << 10,
	} {
		got, err := ParseSize(text)
		if err != nil || int64(got) != want {
			t.Errorf("%s is parsed as %d (%v), want %d", text, got, err, want)
		}
		if back, err := ParseSize(got.String()); err != nil || back != got {
			t.Errorf("%s is formatted as %s (%v)", text, got, err)
		}
	}
	for text, suggested := range map[string]string{
		"": "", "2": "", "2147483648": "", "-1GiB": "", "1.5GiB": "", "0GiB": "", "GiB": "", "2GiBs": "", "2GB": "2GiB", "2G": "2GiB", "2Gi": "2GiB", "512mb": "512MiB", "64 kib": "64KiB",
	} {
		_, err := ParseSize(text)
		if err == nil || !strings.Contains(err.Error(), "512MiB or 2GiB") || strings.HasSuffix(err.Error(), "; write "+suggested) != (suggested != "") {
			t.Errorf("%q: %v, want an error that suggests %q", text, err, suggested)
		}
	}
}

func TestParseSizeRejectsOverflow(t *testing.T) {
	for _, text := range []string{"8388608TiB", "999999999999TiB", "1000000000000KiB"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%s is parsed as %d", text, n)
		}
	}
}

// Sizes survive encoding a configuration as YAML or JSON.
func TestSizesAreParsedAsEncoded(t *testing.T) {
	want := Memory{Total: 3 * GiB, Requests: 96 * MiB, Tenant: 1 * KiB}
	for name, codec := range map[string]struct {
		write func(any) ([]byte, error)
		read  func([]byte, any) error
	}{"YAML": {yaml.Marshal, yaml.Unmarshal}, "JSON": {json.Marshal, json.Unmarshal}} {
		var got Memory
		text, err := codec.write(want)
		if err == nil {
			err = codec.read(text, &got)
		}
		if err != nil || got != want || !strings.Contains(string(text), "3GiB") {
			t.Errorf("%s: %s is parsed as %+v (%v), want %+v", name, text, got, err, want)
		}
	}
}

// The defaults of balancer.memory are consistent.
func TestBalancerMemoryDefaults(t *testing.T) {
	for text, want := range map[string]Memory{
		``:                                 {2 * GiB, 1 * GiB, 256 * MiB},
		`{total: 4GiB}`:                    {4 * GiB, 2 * GiB, 512 * MiB},
		`{total: 256MiB}`:                  {256 * MiB, 128 * MiB, 32 * MiB},
		`{requests: 300MiB}`:               {2 * GiB, 300 * MiB, 75 * MiB},
		`{requests: 64MiB, tenant: 64MiB}`: {2 * GiB, 64 * MiB, 64 * MiB},
		`{requests: 64MiB}`:                {2 * GiB, 64 * MiB, 32 * MiB},
		`{total: 8GiB, tenant: 1GiB}`:      {8 * GiB, 4 * GiB, 1 * GiB},
	} {
		more := ""
		if text != "" {
			more = "balancer: {memory: " + text + "}\n"
		}
		s, err := Parse("service.yaml", []byte(small+more))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if s.Balancer.Memory != want {
			t.Errorf("%s: got %+v, want %+v", text, s.Balancer.Memory, want)
		}
	}
}

package openai

import (
	"strings"
	"testing"
)

// A fingerprint depends on the fields that reach an engine, but not on their order or spelling, or
// on the client.
func TestFingerprints(t *testing.T) {
	const base = `{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"max_tokens":5}`
	of := func(body, path string, name ResolvedModel) uint64 {
		c, err := ReadCall([]byte(body), 1)
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return c.Fingerprint(endpoints[path], name)
	}
	m := ResolvedModel{Model: "m"}
	want := of(base, chatPath, m)
	if want == 0 {
		t.Error("it is 0, which stands for none")
	}
	for name, same := range map[string]string{
		"order":     `{"max_tokens":5,"temperature":0.5,"messages":[{"role":"user","content":"hi"}],"model":"m"}`,
		"alias":     strings.Replace(base, `"m"`, `"other name"`, 1),
		"stream":    strings.Replace(base, `"temperature"`, `"stream":true,"stream_options":{"include_usage":true},"temperature"`, 1),
		"user":      strings.Replace(base, `"temperature"`, `"user":"ann","metadata":{"a":"b"},"prompt_cache_key":"k","temperature"`, 1),
		"space":     strings.Replace(base, `,"temp`, ` , "temp`, 1),
		"not asked": strings.Replace(base, `"temperature"`, `"user":null,"temperature"`, 1),
	} {
		if got := of(same, chatPath, m); got != want {
			t.Errorf("%s: %s has another fingerprint", name, same)
		}
	}
	for name, other := range map[string]uint64{
		"prompt":    of(strings.Replace(base, "hi", "ho", 1), chatPath, m),
		"parameter": of(strings.Replace(base, "0.5", "0.6", 1), chatPath, m),
		"one more":  of(strings.Replace(base, `"temperature"`, `"top_k":1,"temperature"`, 1), chatPath, m),
		"model":     of(base, chatPath, ResolvedModel{Model: "n"}),
		"adapter":   of(base, chatPath, ResolvedModel{Model: "m", Adapter: "a"}),
		"path":      of(base, "/v1/completions", m),
	} {
		if other == want {
			t.Errorf("another %s has the same fingerprint", name)
		}
	}
}

// Without the seed, fields that produce the fingerprint of another request cannot be found: each
// summand depends on the seed.
func TestFingerprintsAreSeeded(t *testing.T) {
	adds := func(seed uint64) uint64 {
		var sums [2]uint64
		for i, body := range []string{`{"model":"m","a":"x"}`, `{"model":"m","a":"y"}`} {
			c, err := ReadCall([]byte(body), seed)
			if err != nil {
				t.Fatal(err)
			}
			sums[i] = c.sum
		}
		return sums[1] - sums[0]
	}
	if adds(1) == adds(2) {
		t.Error("a field adds the same whatever the seed is")
	}
}

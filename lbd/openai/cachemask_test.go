package openai

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestCachedTokensAreMasked(t *testing.T) {
	for in, want := range map[string]string{
		`{"usage":{"prompt_tokens_details":{"cached_tokens":64}}}`: `{"usage":{"prompt_tokens_details":{"cached_tokens":0 }}}`,
		`{"cached_tokens" : 12345 , "prompt_tokens":99}`:           `{"cached_tokens" : 0     , "prompt_tokens":99}`,
		`{"cached_tokens":0}`:                                                    `{"cached_tokens":0}`,
		`{"cached_tokens":null,"a":7}`:                                           `{"cached_tokens":null,"a":7}`,
		`{"cached_tokens":-1.5e+3,"a":7}`:                                        `{"cached_tokens":0      ,"a":7}`,
		`{"cached_tokens_per_turn":[64, 0,128],"a":[7]}`:                         `{"cached_tokens_per_turn":[0 , 0,0  ],"a":[7]}`,
		`{"cached_tokens_details":{"device":10,"x":"9","host":[3]},"a":{"b":7}}`: `{"cached_tokens_details":{"device":0 ,"x":"9","host":[0]},"a":{"b":7}}`,
		`{"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":9}`:             `{"prompt_cache_hit_tokens":0,"prompt_cache_miss_tokens":0}`,
		// Values that are not the engine's figures stay unchanged.
		`{"prompt_cache_key":"64","cache_size":64}`:              `{"prompt_cache_key":"64","cache_size":64}`,
		`{"content":"\"cached_tokens\":64"}`:                     `{"content":"\"cached_tokens\":64"}`,
		`["cached_tokens",64,"cached_tokens"]`:                   `["cached_tokens",64,"cached_tokens"]`,
		`{"x":"cached_tokens","y":64}`:                           `{"x":"cached_tokens","y":64}`,
		`{"my_cached_tokens":64,"x\"cached_tokens":64}`:          `{"my_cached_tokens":64,"x\"cached_tokens":64}`,
		"data: {\"usage\":{\"cached_tokens\":3}}\n\ndata: 5\n\n": "data: {\"usage\":{\"cached_tokens\":0}}\n\ndata: 5\n\n",
	} {
		for cut := range len(in) {
			b := []byte(in)
			var m CacheMask
			m.Hide(b[:cut])
			m.Hide(b[cut:])
			if string(b) != want {
				t.Fatalf("%s cut at %d: %s, want %s", in, cut, b, want)
			}
		}
	}
}

// zeroed returns v with every number below a cache name set to zero.
func zeroed(v any, hidden bool) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			below := hidden
			for _, name := range cacheNames {
				below = below || strings.HasPrefix(k, name) && !strings.ContainsAny(k, `"\`) // engines do not escape letters
			}
			v[k] = zeroed(v[k], below)
		}
		return v
	case []any:
		for i := range v {
			v[i] = zeroed(v[i], hidden)
		}
		return v
	case float64:
		if hidden {
			return 0.0
		}
	}
	return v
}

// drawValue returns a random JSON value.
func drawValue(rt *rapid.T, depth int) any {
	name := rapid.SampledFrom(append([]string{"a", "usage", `x"cached_tokens`, "cached_tokens\\", "cache", "é"}, cacheNames...))
	switch kind := rapid.IntRange(0, 6).Draw(rt, "kind"); {
	case kind < 2 && depth > 0:
		m := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(rt, "members") {
			m[name.Draw(rt, "name")] = drawValue(rt, depth-1)
		}
		return m
	case kind < 3 && depth > 0:
		a := []any{}
		for range rapid.IntRange(0, 3).Draw(rt, "elements") {
			a = append(a, drawValue(rt, depth-1))
		}
		return a
	case kind < 5:
		return rapid.Float64Range(-1e9, 1e30).Draw(rt, "number")
	case kind == 5:
		return name.Draw(rt, "text")
	}
	return nil
}

// In any document, split into any pieces, exactly the numbers under these names become zero, and
// the length stays the same.
func TestMaskMatchesReference(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		given := drawValue(rt, 4)
		indent := rapid.SampledFrom([]string{"", " "}).Draw(rt, "indent")
		in, err := json.MarshalIndent(given, "", indent)
		if err != nil {
			rt.Fatal(err)
		}
		b := append([]byte(nil), in...)
		var m CacheMask
		for rest := b; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "piece")
			m.Hide(rest[:n])
			rest = rest[n:]
		}
		var got, want any
		if err := json.Unmarshal(b, &got); err != nil {
			rt.Fatalf("%s became %s: %v", in, b, err)
		}
		_ = json.Unmarshal(in, &want)
		if !reflect.DeepEqual(got, zeroed(want, false)) {
			rt.Fatalf("%s became %s", in, b)
		}
	})
}

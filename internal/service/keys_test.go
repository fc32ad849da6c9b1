package service

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseKeys(t *testing.T) {
	usual := KeyLimits{RequestsPerMinute: 60, TokensPerDay: 1000}
	keys, err := ParseKeys("\ufeff# ours\n\n  sk-bare\r\nsk-1 name=acme tenant=corp tier=NIW concurrent=4 tokens_per_day=unlimited\nsk-2\tname=acme tenant=corp tier=NIW concurrent=4 tokens_per_day=unlimited\n", usual)
	if err != nil || len(keys) != 3 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	if k := keys[0]; k.Secret != "sk-bare" || !strings.HasPrefix(k.Name, "key-") || strings.Contains(k.Name, "sk") || k.Tenant != k.Name || k.Tier != "" || k.Limits != usual {
		t.Errorf("a key alone: %+v", k)
	}
	want := APIKey{Secret: "sk-1", Name: "acme", Tenant: "corp", Tier: TierDeferred, Limits: KeyLimits{RequestsPerMinute: 60, Concurrent: 4}}
	if keys[1] != want {
		t.Errorf("got %+v, want %+v", keys[1], want)
	}
	if want.Secret = "sk-2"; keys[2] != want {
		t.Errorf("got %+v, want %+v", keys[2], want)
	}
}

// max_tier is also the default tier of a key whose default would be above it.
func TestMaxTierLimitsDefaultTier(t *testing.T) {
	for line, want := range map[string]struct{ tier, maxTier Tier }{
		"sk":                         {"", ""},
		"sk max_tier=IW-F":           {"", TierFast},
		"sk max_tier=iw-n":           {TierNormal, TierNormal},
		"sk max_tier=NIW":            {TierDeferred, TierDeferred},
		"sk tier=NIW max_tier=IW-N":  {TierDeferred, TierNormal},
		"sk max_tier=IW-N tier=IW-N": {TierNormal, TierNormal},
	} {
		keys, err := ParseKeys(line, KeyLimits{})
		if err != nil || keys[0].Tier != want.tier || keys[0].MaxTier != want.maxTier {
			t.Errorf("%q: %+v, %v, want %+v", line, keys, err, want)
		}
	}
}

func TestParseKeysRejectsInvalidLines(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"sk-a\nsk-b do_not_show", "line 2: word 2 must be ATTRIBUTE=VALUE (it is not shown, because it may be a key)"},
		{"sk-a\nsk-\u00e9 name=x", "line 2: the key must be printable ASCII characters, which clients can send (it is not shown)"},
		{"\xff\xfes\x00k\x00\n", "line 1: the key must be printable ASCII characters"},
		{"sk-a name=", "line 1: name: must be ASCII letters, digits"},
		{"sk-a name=other", `line 1: name: must not be "other"`},
		{"sk-a tenant=a|b", `line 1: tenant: must be ASCII letters, digits and . _ @ / -, at most 64 characters, starting with a letter or digit, got "a|b"`},
		{"sk-a tier=gold", "line 1: tier: "},
		{"sk-a max_tier=gold", "line 1: max_tier: unknown tier"},
		{"sk-a max_tier=", "line 1: max_tier: is empty: must be fast (IW-F), normal (IW-N) or deferred (NIW)"},
		{"sk-a tier=IW-F max_tier=NIW", "line 1: tier: must not be more urgent than max_tier (NIW), got IW-F"},
		{"#\nsk-a name=x max_tier=NIW\nsk-b name=x", `line 3: the attributes of "x" differ from those on line 2`},
		{"sk-a token_per_minute=1", "line 1: unknown attribute; did you mean \"tokens_per_minute\"?"},
		{"sk-a do_not_show=1", "line 1: unknown attribute"},
		{"sk-a concurrent=0", "line 1: concurrent: must be at least 1, got 0"},
		{"sk-a concurrent=-3", "line 1: concurrent: must be at least 1, got -3"},
		{"sk-a tokens_per_minute=2000000000", "line 1: tokens_per_minute: must be at most 1000000000, got 2000000000"},
		{"sk-a tokens_per_day=1e6", `line 1: tokens_per_day: must be a whole number or unlimited, got "1e6"`},
		{"sk-a tokens_per_day=99999999999999999999", "line 1: tokens_per_day: must be a whole number"},
		{"sk-a concurrent=010", "line 1: concurrent: must be a whole number"},
		{"sk-a concurrent=1 concurrent=1", "line 1: concurrent: must be set only once"},
		{"#\nsk-a name=x concurrent=1\n\nsk-b name=x", `line 4: the attributes of "x" differ from those on line 2`},
		{"sk-a name=x\nsk-a name=y", "line 2: duplicates the key on line 1"},
	} {
		_, err := ParseKeys(c.text, KeyLimits{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v, want %s", c.text, err, c.want)
		} else if strings.Contains(err.Error(), "sk-") || strings.Contains(err.Error(), "do_not_show") {
			t.Errorf("%q: the error contains what may be a key: %v", c.text, err)
		}
	}
	if keys, err := ParseKeys("sk-a\nsk-a", KeyLimits{}); err != nil || len(keys) != 2 {
		t.Errorf("the same line twice: %v", err)
	}
}

// For any list, accepted keys have limits that a service.yaml may contain, and errors contain no
// key.
func TestParseKeysLimitsAreValid(t *testing.T) {
	word := rapid.StringMatching(`(name|tenant|tier|concurrent|tokens_per_day|x)=[a-z0-9-]{0,12}`)
	rapid.Check(t, func(t *rapid.T) {
		var text strings.Builder
		for range rapid.IntRange(0, 4).Draw(t, "lines") {
			text.WriteString("SECRET" + rapid.StringMatching(`[A-Z]{1,3}`).Draw(t, "key"))
			for _, w := range rapid.SliceOfN(word, 0, 3).Draw(t, "words") {
				text.WriteString(" " + w)
			}
			text.WriteString("\n")
		}
		keys, err := ParseKeys(text.String(), KeyLimits{Concurrent: 1})
		if err != nil && strings.Contains(err.Error(), "SECRET") {
			t.Fatalf("%v", err)
		}
		for _, k := range keys {
			if err := k.Limits.Check(); err != nil || k.Name == "" || k.Tenant == "" {
				t.Fatalf("%+v: %v", k, err)
			}
		}
	})
}

func TestKeyLimitsCheck(t *testing.T) {
	if err := (KeyLimits{}).Check(); err != nil {
		t.Error(err)
	}
	if err := (KeyLimits{TokensPerMonth: -1}).Check(); err == nil || err.Error() != "tokens_per_month: must be at least 1, got -1" {
		t.Error(err)
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add("# c\nsk name=a tier=NIW tokens_per_minute=5\nsk2 concurrent=unlimited")
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := ParseKeys(text, KeyLimits{})
		if err != nil {
			return
		}
		for _, k := range keys {
			if err := k.Limits.Check(); err != nil || k.Secret == "" {
				t.Errorf("%+v: %v", k, err)
			}
		}
	})
}

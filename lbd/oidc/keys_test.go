package oidc

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"skyserve/internal/service"
)

// A token with a new key is verified after one refresh, and the withdrawn key is rejected from then on.
func TestKeysRotate(t *testing.T) {
	first, second := newECDSA(t, "k1"), newECDSA(t, "k2")
	synctest.Test(t, func(t *testing.T) {
		f := newIssuer(t, first)
		v := verifierOf(t, f, nil)
		claims := with(good(time.Now()), map[string]any{"exp": time.Now().Add(24 * time.Hour).Unix()})
		old, renewed := first.sign(t, claims), second.sign(t, claims)
		if _, err := v.Verify(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		generation := v.Generation()
		time.Sleep(unknownInterval)
		f.publish(second)
		if _, err := v.Verify(t.Context(), renewed); err != nil {
			t.Errorf("a new key: %v", err)
		}
		if r := reject(t, v, old); r.Reason != "the token is signed with the unknown key 'k1'" {
			t.Errorf("the withdrawn key: %v", r)
		}
		if v.Generation() == generation {
			t.Error("tokens that were verified with the withdrawn key remain valid")
		}
	})
}

// Keys are also withdrawn without a token that asks for a refresh.
func TestWithdrawnKeyIsRejectedLater(t *testing.T) {
	first, second := newECDSA(t, "k1"), newECDSA(t, "k2")
	synctest.Test(t, func(t *testing.T) {
		f := newIssuer(t, first, second)
		v := verifierOf(t, f, nil)
		synctest.Wait()
		generation := v.Generation()
		time.Sleep(2 * refreshInterval)
		if v.Generation() != generation {
			t.Error("unchanged keys invalidate verified tokens")
		}
		f.publish(second)
		time.Sleep(refreshInterval + time.Second)
		if r := reject(t, v, first.sign(t, good(time.Now()))); !strings.Contains(r.Reason, "unknown key") || v.Generation() == generation {
			t.Errorf("the withdrawn key: %v", r)
		}
	})
}

// Whatever clients send, the issuer is asked at most once in unknownInterval, and no request waits
// longer than maxWait.
func TestUnknownKeysDoNotFloodIssuer(t *testing.T) {
	key, unknown := newECDSA(t, "k1"), newECDSA(t, "k9")
	synctest.Test(t, func(t *testing.T) {
		f := newIssuer(t, key)
		v := verifierOf(t, f, nil)
		synctest.Wait()
		before, began := f.fetched(), time.Now()
		garbage := unknown.sign(t, good(began))
		for range 10_000 {
			reject(t, v, garbage)
			time.Sleep(3 * time.Millisecond)
		}
		if n := f.fetched() - before; n > 3 {
			t.Errorf("%d fetches in %s", n, time.Since(began))
		}
		f.change(func(f *fakeIssuer) { f.hangs = true })
		time.Sleep(unknownInterval)
		began = time.Now()
		if r := reject(t, v, garbage); r.Kind != RejectUnavailable || time.Since(began) > maxWait {
			t.Errorf("a slow issuer: %v after %s", r, time.Since(began))
		}
		began = time.Now()
		if _, err := v.Verify(t.Context(), key.sign(t, good(began))); err != nil || time.Since(began) > 0 {
			t.Errorf("a known key while the issuer is slow: %v after %s", err, time.Since(began))
		}
	})
}

// The issuer is down at the start: tokens are unavailable, not invalid, until it responds.
func TestStartsWhileIssuerIsDown(t *testing.T) {
	key := newECDSA(t, "k1")
	synctest.Test(t, func(t *testing.T) {
		f := newIssuer(t, key)
		f.change(func(f *fakeIssuer) { f.down = errors.New("connection refused") })
		v := verifierOf(t, f, nil)
		synctest.Wait()
		began := time.Now()
		if r := reject(t, v, key.sign(t, good(began))); r.Kind != RejectUnavailable || r.Reason != "the keys of the token's issuer were not received yet" || time.Since(began) > 0 {
			t.Errorf("got %+v after %s", r, time.Since(began))
		}
		if p := v.Problems(); len(p) != 1 || p[0].Issuer != testIssuer || !p[0].KeysUntil.IsZero() || p[0].Err == nil {
			t.Errorf("problems: %+v", p)
		}
		f.change(func(f *fakeIssuer) { f.down = nil })
		time.Sleep(2 * retryMin)
		if _, err := v.Verify(t.Context(), key.sign(t, good(time.Now()))); err != nil || len(v.Problems()) > 0 {
			t.Errorf("%v, %v", err, v.Problems())
		}
	})
}

// Known keys are used while the issuer is down, for a bounded time.
func TestKeysOutliveIssuerForDay(t *testing.T) {
	key, unknown := newECDSA(t, "k1"), newECDSA(t, "k9")
	synctest.Test(t, func(t *testing.T) {
		f := newIssuer(t, key)
		v := verifierOf(t, f, nil)
		synctest.Wait()
		fetched := time.Now()
		f.change(func(f *fakeIssuer) { f.down = errors.New("connection refused") })
		time.Sleep(maxKeyAge - time.Second)
		if _, err := v.Verify(t.Context(), key.sign(t, good(time.Now()))); err != nil {
			t.Errorf("keys of %s: %v", maxKeyAge, err)
		}
		if r := reject(t, v, unknown.sign(t, good(time.Now()))); r.Kind != RejectUnavailable {
			t.Errorf("a key that may be new: %+v", r)
		}
		if p := v.Problems(); len(p) != 1 || !p[0].KeysUntil.Equal(fetched.Add(maxKeyAge)) || !p[0].Since.Before(fetched.Add(2*refreshInterval)) {
			t.Errorf("problems: %+v", p)
		}
		time.Sleep(2 * time.Second)
		if r := reject(t, v, key.sign(t, good(time.Now()))); r.Kind != RejectUnavailable || !strings.Contains(r.Reason, "the issuer of the token has not responded since 2000-01-01T00:00:00Z") {
			t.Errorf("keys that are too old: %+v", r)
		}
	})
}

func TestIssuerDocumentsAreChecked(t *testing.T) {
	key := newECDSA(t, "k1")
	for name, c := range map[string]struct {
		change func(*fakeIssuer)
		want   string
	}{
		"keys over http":        {func(f *fakeIssuer) { f.keysURL = "http://login.example.com/keys" }, "must be an https URL, got 'http://login.example.com/keys'"},
		"keys in a file":        {func(f *fakeIssuer) { f.keysURL = "file:///etc/passwd" }, "must be an https URL, got 'file:///etc/passwd'"},
		"no keys URL":           {func(f *fakeIssuer) { f.keysURL = "" }, "must be an https URL, got ''"},
		"keys elsewhere":        {func(f *fakeIssuer) { f.keysURL = "https://login.example.com/no" }, "status 404"},
		"keys are not JSON":     {func(f *fakeIssuer) { f.document = "<html>" }, "not a JSON Web Key Set"},
		"only a secret":         {func(f *fakeIssuer) { f.document = `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"k1"}]}` }, "no public keys"},
		"keys for encryption":   {func(f *fakeIssuer) { f.keys[0].Use = "enc" }, "no public keys"},
		"too many keys":         {func(f *fakeIssuer) { f.document = `{"keys":[1` + strings.Repeat(",1", maxKeys) + `]}` }, "101 keys, at most 100"},
		"an endless document":   {func(f *fakeIssuer) { f.document = `{"keys":[` + strings.Repeat(" ", 2*maxDocument) + `]}` }, "not a JSON Web Key Set"},
		"a key of unknown type": {func(f *fakeIssuer) { f.document = `{"keys":[{"kty":"future"},{}]}` }, "no public keys"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newIssuer(t, key)
				f.change(c.change)
				v := verifierOf(t, f, nil)
				synctest.Wait()
				if p := v.Problems(); len(p) != 1 || !strings.Contains(p[0].Err.Error(), c.want) {
					t.Errorf("problems %+v, want %s", p, c.want)
				}
			})
		})
	}
}

// A reload keeps the keys of issuers that remain, and stops fetching those of others.
func TestConfigureKeepsKeys(t *testing.T) {
	key := newECDSA(t, "k1")
	synctest.Test(t, func(t *testing.T) {
		f := newIssuer(t, key)
		v := verifierOf(t, f, nil)
		token := key.sign(t, good(time.Now()))
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		f.change(func(f *fakeIssuer) { f.down = errors.New("connection refused") })
		generation := v.Generation()
		v.Configure([]service.OIDC{{Issuer: testIssuer, Audience: "mail"}}, service.KeyLimits{})
		if r := reject(t, v, token); r.Kind != RejectInvalid || !strings.Contains(r.Reason, "want 'mail'") || v.Generation() == generation {
			t.Errorf("another audience: %+v", r)
		}
		v.Configure([]service.OIDC{{Issuer: testIssuer, Audience: testAudience}}, service.KeyLimits{})
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Errorf("the keys are gone: %v", err)
		}
		v.Configure(nil, service.KeyLimits{})
		if r := reject(t, v, token); v.Enabled() || !strings.Contains(r.Reason, "is not accepted") {
			t.Errorf("without issuers: %+v", r)
		}
		before := f.fetched()
		f.change(func(f *fakeIssuer) { f.down = nil })
		time.Sleep(2 * refreshInterval)
		if f.fetched() != before {
			t.Error("the keys of a removed issuer are fetched")
		}
	})
}

// The text of an issuer in an error ends at a whole character.
func TestLongErrorsAreCutAtCharacters(t *testing.T) {
	want := "x" + strings.Repeat("é", 149) + "..."
	if got := clipError(errors.New("x" + strings.Repeat("é", 200))).Error(); got != want {
		t.Errorf("got %q", got)
	}
}

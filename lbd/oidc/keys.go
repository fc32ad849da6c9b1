package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

// Times and sizes of fetching an issuer's keys, each with its reason.
const (
	// refreshInterval is the interval of refreshes: a key that the issuer withdraws is accepted for at
	// most this time.
	refreshInterval = 5 * time.Minute
	// maxKeyAge is how long keys are used while the issuer is down: a working day and a night.
	maxKeyAge = 24 * time.Hour
	// retryMin and retryMax are the backoff while an issuer does not respond.
	retryMin, retryMax = time.Second, time.Minute
	// unknownInterval is the minimum time between two refreshes because of tokens with an unknown key,
	// whatever clients send.
	unknownInterval = 10 * time.Second
	// maxWait is how long a request waits for a refresh.
	maxWait = 2 * time.Second
	// fetchTimeout is the timeout of one refresh.
	fetchTimeout = 10 * time.Second
	// maxDocument is the maximum size of a response of an issuer; the keys of the largest ones have 10 KB.
	maxDocument = 1 << 20
	// maxKeys is the maximum number of keys of an issuer. Most have two.
	maxKeys = 100
)

// algorithms are the accepted signature algorithms: those with a public key. Neither none nor HMAC is
// among them, for which a public key could be used as a secret.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512, jose.PS256, jose.PS384, jose.PS512, jose.EdDSA,
}

// keySet is the signing keys of one issuer.
type keySet struct {
	issuer  string
	client  *http.Client
	log     *slog.Logger
	now     func() time.Time
	changed func()        // called when the keys change
	wanted  chan struct{} // requests a refresh

	mu        sync.Mutex
	keys      []jose.JSONWebKey
	fetchedAt time.Time     // of the last success; zero = none yet
	triedAt   time.Time     // of the last start of a refresh
	running   bool          // a refresh is in progress
	failedAt  time.Time     // of the first failure since the last success; zero = none
	err       error         // of the last refresh
	refreshed chan struct{} // closed at the end of the current or next refresh
}

func newKeySet(issuer string, v *Verifier) *keySet {
	return &keySet{
		issuer: issuer, client: v.client, log: v.log, now: v.now, changed: func() { v.generation.Add(1) },
		wanted: make(chan struct{}, 1), refreshed: make(chan struct{}),
	}
}

// run refreshes the keys until ctx ends.
func (k *keySet) run(ctx context.Context) {
	backoff := retryMin
	for {
		wait := refreshInterval
		if k.refresh(ctx) {
			backoff = retryMin
		} else {
			wait, backoff = backoff, min(2*backoff, retryMax)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-k.wanted:
			timer.Stop()
		}
	}
}

// refresh fetches the keys once and reports whether that succeeded.
func (k *keySet) refresh(ctx context.Context) (ok bool) {
	k.mu.Lock()
	k.triedAt, k.running = k.now(), true
	k.mu.Unlock()
	fetching, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	keys, err := k.fetch(fetching)
	k.mu.Lock()
	defer k.mu.Unlock()
	failedBefore := !k.failedAt.IsZero()
	switch {
	case err == nil:
		if !sameKeys(k.keys, keys) {
			k.changed()
		}
		k.keys, k.fetchedAt, k.failedAt = keys, k.now(), time.Time{}
		if failedBefore {
			k.log.Info("fetching the keys of an issuer succeeded again", "issuer", k.issuer)
		}
	case !failedBefore && ctx.Err() == nil: // otherwise the verifier is closed, or the issuer removed
		k.failedAt = k.now()
		k.log.Warn("fetching the keys of an issuer failed, retrying", "issuer", k.issuer, "err", err)
	}
	k.err, k.running = err, false
	close(k.refreshed)
	k.refreshed = make(chan struct{})
	select {
	case <-k.wanted: // this refresh was the wanted one
	default:
	}
	return err == nil
}

func sameKeys(a, b []jose.JSONWebKey) bool {
	return slices.EqualFunc(a, b, func(x, y jose.JSONWebKey) bool {
		first, err := x.MarshalJSON()
		second, err2 := y.MarshalJSON()
		return err == nil && err2 == nil && string(first) == string(second)
	})
}

// fetch discovers the URL of the keys and reads them.
func (k *keySet) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	provider, err := gooidc.NewProvider(gooidc.ClientContext(ctx, k.client), k.issuer)
	if err != nil {
		return nil, clipError(err)
	}
	var document struct {
		KeysURL string `json:"jwks_uri"`
	}
	if err := provider.Claims(&document); err != nil {
		return nil, clipError(err)
	}
	if err := checkKeysURL(k.issuer, document.KeysURL); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, document.KeysURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: status %d", document.KeysURL, resp.StatusCode)
	}
	return parseKeys(data)
}

// maxError is the maximum length of an error that contains a response of an issuer.
const maxError = 300

func clipError(err error) error {
	if text := err.Error(); len(text) > maxError {
		return errors.New(strings.ToValidUTF8(text[:maxError], "") + "...")
	}
	return err
}

// checkKeysURL requires https, unless the issuer is on this machine.
func checkKeysURL(issuer, raw string) error {
	from, err := url.Parse(issuer)
	if err != nil {
		return err
	}
	to, err := url.Parse(raw)
	if err != nil || to.Scheme != "https" && (to.Scheme != "http" || from.Scheme != "http" || !onThisMachine(to.Hostname())) {
		return fmt.Errorf("jwks_uri of the issuer: must be an https URL, got %s", quote(raw))
	}
	return nil
}

func onThisMachine(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

// parseKeys parses a set of keys. Keys that are not for signatures, and those of unknown types, are skipped.
func parseKeys(data []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, errors.New("the keys of the issuer are not a JSON Web Key Set")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the issuer has %d keys, at most %d are accepted", len(set.Keys), maxKeys)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if key.UnmarshalJSON(raw) == nil && key.IsPublic() && key.Valid() && (key.Use == "" || key.Use == "sig") {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("the issuer has no public keys for signatures")
	}
	return keys, nil
}

// errUnavailable means that a signature cannot be verified now.
type errUnavailable struct{ reason string }

// Error returns the reason.
func (e *errUnavailable) Error() string { return e.reason }

// verify verifies the signature of a token. For an unknown key it waits for a refresh, for at most
// maxWait. It fails with *errUnavailable without usable keys.
func (k *keySet) verify(ctx context.Context, token string) (payload []byte, err error) {
	jws, err := jose.ParseSigned(token, algorithms)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, errors.New("the token is malformed")
	}
	header := jws.Signatures[0].Header
	keys, err := k.candidates(header.KeyID)
	if len(keys) == 0 {
		if !k.awaitRefresh(ctx) {
			return nil, &errUnavailable{"the issuer of the token does not respond"}
		}
		keys, err = k.candidates(header.KeyID)
	}
	if len(keys) == 0 {
		return nil, err
	}
	for i := range keys {
		if keys[i].Algorithm != "" && keys[i].Algorithm != header.Algorithm {
			continue
		}
		if payload, err := jws.Verify(&keys[i]); err == nil {
			return payload, nil
		}
	}
	return nil, errors.New("the signature of the token is wrong")
}

// candidates returns the keys that may have signed a token with a key id: all keys if the token has none.
// Without such a key, it returns the reason: *errUnavailable if a refresh may find one.
func (k *keySet) candidates(id string) ([]jose.JSONWebKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.fetchedAt.IsZero():
		return nil, &errUnavailable{"the keys of the token's issuer were not received yet"}
	case k.now().Sub(k.fetchedAt) > maxKeyAge:
		return nil, &errUnavailable{"the issuer of the token has not responded since " + k.fetchedAt.UTC().Format(time.RFC3339)}
	case id == "":
		return k.keys, nil
	}
	var keys []jose.JSONWebKey
	for _, key := range k.keys {
		if key.KeyID == id {
			keys = append(keys, key)
		}
	}
	switch {
	case len(keys) > 0:
		return keys, nil
	case k.err != nil:
		return nil, &errUnavailable{"the key of the token is unknown, and its issuer does not respond"}
	}
	return nil, fmt.Errorf("the token is signed with the unknown key %s", quote(id))
}

// awaitRefresh waits for the end of a refresh that is in progress, or of a new one unless the last one is
// more recent than unknownInterval. It returns false if none ended in time.
func (k *keySet) awaitRefresh(ctx context.Context) bool {
	k.mu.Lock()
	done, running, recent := k.refreshed, k.running, k.now().Sub(k.triedAt) < unknownInterval
	if !running && !recent {
		select {
		case k.wanted <- struct{}{}:
		default: // it is requested already
		}
	}
	k.mu.Unlock()
	if !running && recent {
		return true
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// lastFetch returns when the keys were received; ok is false before that.
func (k *keySet) lastFetch() (at time.Time, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fetchedAt, !k.fetchedAt.IsZero()
}

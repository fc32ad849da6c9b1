package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Issuer is an issuer of identity tokens on this machine, with one key.
type Issuer struct {
	URL string
	t   testing.TB
	key *ecdsa.PrivateKey
}

// NewIssuer starts an issuer until the test ends.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{t: t, key: key}
	mux := http.NewServeMux()
	respond := func(path string, document func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(document())
		})
	}
	respond("/.well-known/openid-configuration", func() any { return map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"} })
	respond("/keys", func() any {
		return map[string]any{"keys": []any{map[string]string{"kty": "EC", "crv": "P-256", "kid": "k", "x": encodePart(point[1:33]), "y": encodePart(point[33:])}}}
	})
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	i.URL = srv.URL
	return i
}

func encodePart(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// Sign returns a token of a subject for the audience chat, with the claim org = corp and further claims as
// pairs of name and value.
func (i *Issuer) Sign(subject string, expires time.Time, claims ...any) string {
	i.t.Helper()
	all := map[string]any{"iss": i.URL, "aud": "chat", "sub": subject, "org": "corp", "exp": expires.Unix(), "iat": time.Now().Unix()}
	for c := 0; c < len(claims); c += 2 {
		all[claims[c].(string)] = claims[c+1]
	}
	payload, err := json.Marshal(all)
	if err != nil {
		i.t.Fatal(err)
	}
	signed := encodePart([]byte(`{"alg":"ES256","kid":"k"}`)) + "." + encodePart(payload)
	hash := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, hash[:])
	if err != nil {
		i.t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + encodePart(signature)
}

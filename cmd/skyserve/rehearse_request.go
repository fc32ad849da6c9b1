package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"skyserve/internal/service"
)

// requestInterval is the interval of requests until one is served.
const requestInterval = time.Second

// servedTimeout is the time in which a ready service must serve a request.
const servedTimeout = 2 * time.Minute

// requestTimeout is the timeout of one request of a rehearsal.
const requestTimeout = 20 * time.Second

// throwAwayCertificate creates a certificate for the balancers of a rehearsal, with its files in a
// directory. Only the rehearsal's own client accepts it.
func throwAwayCertificate(dir, name string, now time.Time, life time.Duration) (files *service.TLS, der []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), DNSNames: []string{name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life + time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, template, key.Public(), key); err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	files = &service.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	err = os.WriteFile(files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	if err == nil {
		err = os.WriteFile(files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600)
	}
	return files, der, err
}

// client returns an HTTP client that accepts exactly the certificate of the rehearsal.
func (r *rehearsal) client() *http.Client {
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, //nolint:gosec // the certificate is compared below
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 || !bytes.Equal(s.PeerCertificates[0].Raw, r.cert) {
				return errors.New("the balancer presents another certificate than the rehearsal's")
			}
			return nil
		},
	}
	return &http.Client{Timeout: requestTimeout, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
}

// send sends a chat request to a balancer with an API key and returns the response's status, headers and
// body.
func (r *rehearsal) send(ctx context.Context, base, key string) (status int, headers http.Header, body []byte, err error) {
	text := `{"model":"` + rehearsalModel + `","max_tokens":4,"messages":[{"role":"user","content":"rehearsal"}]}`
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(text))
	if err != nil {
		return 0, nil, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.client().Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	const maxBody = 64 << 10
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody))
	return resp.StatusCode, resp.Header, body, err
}

// awaitServed waits until a balancer serves a request with a replica of its own region.
func (r *rehearsal) awaitServed(ctx context.Context, region service.Region, base string) error {
	var last error
	for {
		err := r.checkServed(ctx, region, base)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // the end of ctx is not the reason
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; %s: %w", context.Cause(ctx), region, last)
		case <-time.After(requestInterval):
		}
	}
}

// checkServed sends a request to a balancer and checks that a replica of its own region served it.
func (r *rehearsal) checkServed(ctx context.Context, region service.Region, base string) error {
	status, headers, body, err := r.send(ctx, base, r.key)
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, strings.TrimSpace(string(body)))
	}
	var answer struct {
		Choices []json.RawMessage `json:"choices"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Choices) == 0 {
		return fmt.Errorf("the response has no choices: %s", body)
	}
	if served := headers.Get("X-Skyserve-Region"); served != string(region) {
		return fmt.Errorf("served by region %s", cmp.Or(served, "unknown"))
	}
	return nil
}

// checkRejectsOtherKey checks that a balancer rejects an unknown API key.
func (r *rehearsal) checkRejectsOtherKey(ctx context.Context, region service.Region, base string) error {
	status, _, _, err := r.send(ctx, base, rand.Text())
	if err == nil && status != http.StatusUnauthorized {
		err = fmt.Errorf("status %d, want %d", status, http.StatusUnauthorized)
	}
	if err != nil {
		return fmt.Errorf("sending a request with an unknown key to %s: %w", region, err)
	}
	return nil
}

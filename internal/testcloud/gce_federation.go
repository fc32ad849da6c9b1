package testcloud

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// This file emulates identities across clouds, by the discovery documents of sts v1, iamcredentials v1 and iam v1, and by
// "Verify the identity of instances" of Compute Engine and "Configure Workload Identity Federation with AWS or Azure VMs" of
// IAM (November 2026).

// projectNumber is the number of the emulated project.
const projectNumber = "987654321098"

// googleIssuer is the issuer of identity tokens.
const googleIssuer = "https://accounts.google.com"

// googleKey signs identity tokens of all emulated projects.
var googleKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(fmt.Sprintf("testcloud: generating a key: %v", err))
	}
	return key
})

// GoogleClaims are the claims of an identity token of a service account.
type GoogleClaims struct {
	Issuer          string `json:"iss"`
	Audience        string `json:"aud"`
	AuthorizedParty string `json:"azp"`
	Subject         string `json:"sub"`
	Email           string `json:"email"`
	IssuedAt        int64  `json:"iat"`
	Expires         int64  `json:"exp"`
}

// context returns the condition keys of AWS for a token: with azp, aud is azp and oaud is aud.
func (c GoogleClaims) context() iamContext {
	context := iamContext{}
	context.addValue("accounts.google.com:sub", c.Subject)
	if c.AuthorizedParty == "" {
		context.addValue("accounts.google.com:aud", c.Audience)
		return context
	}
	context.addValue("accounts.google.com:aud", c.AuthorizedParty)
	context.addValue("accounts.google.com:oaud", c.Audience)
	return context
}

// SignGoogleToken returns a token with some claims, signed by Google.
func SignGoogleToken(c GoogleClaims) string {
	signed := encodeToken(gceJSON(map[string]string{"alg": "RS256", "kid": "1", "typ": "JWT"})) + "." + encodeToken(gceJSON(c))
	digest := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(nil, googleKey(), crypto.SHA256, digest[:])
	if err != nil {
		panic(fmt.Sprintf("testcloud: signing a token: %v", err))
	}
	return signed + "." + encodeToken(signature)
}

// encodeToken encodes a part of a JSON Web Token.
func encodeToken(part []byte) string { return base64.RawURLEncoding.EncodeToString(part) }

// VerifyIdentityToken returns the claims of a token that Google signed. Errors include ErrExpiredToken.
func (g *GCE) VerifyIdentityToken(token string) (c GoogleClaims, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return c, errors.New("not a JSON Web Token")
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if err == nil {
		err = rsa.VerifyPKCS1v15(&googleKey().PublicKey, crypto.SHA256, digest[:], signature)
	}
	if err != nil {
		return c, err
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	switch {
	case err != nil:
		return c, err
	case c.Issuer != googleIssuer:
		return c, fmt.Errorf("unknown issuer %q", c.Issuer)
	case g.now().Unix() > c.Expires:
		return c, ErrExpiredToken
	}
	return c, nil
}

// UniqueID returns the unique id of a service account.
func UniqueID(email string) string {
	h := fnv.New64a()
	h.Write([]byte(email)) //nolint:errcheck // a hash does not fail
	return fmt.Sprintf("1%020d", h.Sum64())
}

// IdentityToken returns the token that the metadata server gives the machine of a name for an audience; empty if it has no
// service account.
func (g *GCE) IdentityToken(name, audience string) string {
	email, _ := g.MachineCredentials(name)
	if email == "" {
		return ""
	}
	id, now := UniqueID(email), g.now()
	return SignGoogleToken(GoogleClaims{googleIssuer, audience, id, id, email, now.Unix(), now.Add(time.Hour).Unix()})
}

// getServiceAccount serves a service account.
func (g *GCE) getServiceAccount(r *http.Request) (any, *gceError) {
	email := r.PathValue("account")
	if fail := g.require(r, g.projectResource(), "iam.serviceAccounts.get"); fail != nil {
		return nil, fail
	}
	if _, known := g.policy[email]; !known {
		return nil, newGCEError(http.StatusNotFound, "notFound", "Unknown service account")
	}
	return map[string]any{"name": "projects/" + g.project + "/serviceAccounts/" + email, "projectId": g.project, "uniqueId": UniqueID(email), "email": email}, nil
}

// getProjectNumber serves the project of Resource Manager.
func (g *GCE) getProjectNumber(r *http.Request) (any, *gceError) {
	if fail := g.require(r, g.projectResource(), "resourcemanager.projects.get"); fail != nil {
		return nil, fail
	}
	return map[string]any{"projectNumber": projectNumber, "projectId": g.project, "lifecycleState": "ACTIVE"}, nil
}

// gcePool is a workload identity pool: the numbers of the AWS accounts by its providers.
type gcePool map[string]string

// getPoolProvider serves a provider of a workload identity pool.
func (g *GCE) getPoolProvider(r *http.Request) (any, *gceError) {
	if fail := g.require(r, g.projectResource(), "iam.workloadIdentityPoolProviders.get"); fail != nil {
		return nil, fail
	}
	account := g.pools[r.PathValue("pool")][r.PathValue("name")]
	if r.PathValue("anywhere") != projectNumber || account == "" {
		return nil, newGCEError(http.StatusNotFound, "notFound", "Requested entity was not found.")
	}
	return map[string]any{"name": strings.TrimPrefix(r.URL.Path, "/v1/"), "state": "ACTIVE", "aws": map[string]string{"accountId": account}}, nil
}

// federatedTokenPrefix is the prefix of the tokens of federated identities.
const federatedTokenPrefix = "ya29.federated."

// exchangeToken serves sts.googleapis.com: a request to AWS that a machine there signed becomes a token of its role.
func (g *GCE) exchangeToken(r *http.Request) (any, *gceError) {
	invalid := func(format string, args ...any) (any, *gceError) {
		body := gceJSON(map[string]string{"error": "invalid_grant", "error_description": fmt.Sprintf(format, args...)})
		return gceReply{status: http.StatusBadRequest, body: body}, nil
	}
	if err := r.ParseForm(); err != nil {
		return invalid("%v", err)
	}
	for name, want := range map[string]string{
		"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
		"subject_token_type": "urn:ietf:params:aws:token-type:aws4_request", "scope": "https://www.googleapis.com/auth/cloud-platform",
	} {
		if r.PostForm.Get(name) != want {
			return invalid("%s must be %s, got %q", name, want, r.PostForm.Get(name))
		}
	}
	audience := r.PostForm.Get("audience") // //iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/POOL/providers/PROVIDER
	parts := strings.Split(strings.TrimPrefix(audience, "//iam.googleapis.com/projects/"+projectNumber+"/locations/global/workloadIdentityPools/"), "/")
	if len(parts) != 3 || parts[1] != "providers" || g.pools[parts[0]] == nil || g.pools[parts[0]][parts[2]] == "" {
		return invalid("Invalid value for \"audience\": the pool or its provider does not exist: %s", audience)
	}
	signed, err := signedRequest(r.PostForm.Get("subject_token"))
	if err != nil {
		return invalid("The subject token is malformed: %v", err)
	}
	target := signed.Header.Get("X-Goog-Cloud-Target-Resource")
	_, names, _ := strings.Cut(signed.Header.Get("Authorization"), "SignedHeaders=")
	names, _, _ = strings.Cut(names, ",")
	if target != audience || !slices.Contains(strings.Split(names, ";"), "x-goog-cloud-target-resource") {
		return invalid("The signed header x-goog-cloud-target-resource must be the audience, got %q", target)
	}
	if g.VerifyAWS == nil {
		return invalid("AWS does not respond")
	}
	arn, account, err := g.VerifyAWS(signed)
	if err != nil {
		return invalid("AWS rejected the request: %v", err)
	}
	if account != g.pools[parts[0]][parts[2]] {
		return invalid("The AWS account %s is not that of the provider", account)
	}
	member := "principalSet://iam.googleapis.com/projects/" + projectNumber + "/locations/global/workloadIdentityPools/" + parts[0] + "/attribute.aws_role/" + roleOfSession(arn)
	return map[string]any{"access_token": federatedTokenPrefix + member, "issued_token_type": "urn:ietf:params:oauth:token-type:access_token", "token_type": "Bearer", "expires_in": 3600}, nil
}

// roleOfSession returns the attribute aws_role of the default mapping: an ARN without the name of the session.
func roleOfSession(arn string) string {
	before, after, assumed := strings.Cut(arn, ":assumed-role/")
	role, _, _ := strings.Cut(after, "/")
	if !assumed {
		return arn
	}
	return before + ":assumed-role/" + role
}

// signedRequest parses a subject token.
func signedRequest(token string) (*http.Request, error) {
	text, err := url.QueryUnescape(token)
	if err != nil {
		return nil, err
	}
	var parts struct {
		URL     string `json:"url"`
		Method  string `json:"method"`
		Headers []struct{ Key, Value string }
	}
	if err := json.Unmarshal([]byte(text), &parts); err != nil {
		return nil, err
	}
	r, err := http.NewRequest(parts.Method, parts.URL, nil) //nolint:noctx // it is not sent
	if err != nil {
		return nil, err
	}
	if host := r.URL.Host; r.URL.Scheme != "https" || r.Method != http.MethodPost || !strings.HasPrefix(host, "sts.") || !strings.HasSuffix(host, ".amazonaws.com") {
		return nil, fmt.Errorf("not a request to AWS STS: %s %s", parts.Method, parts.URL)
	}
	for _, h := range parts.Headers {
		r.Header.Add(h.Key, h.Value)
	}
	return r, nil
}

// generateAccessToken serves iamcredentials.googleapis.com: a federated identity becomes a service account.
func (g *GCE) generateAccessToken(r *http.Request, email string) (any, *gceError) {
	var requested struct {
		Delegates []string `json:"delegates"`
		Scope     []string `json:"scope"`
		Lifetime  string   `json:"lifetime"`
	}
	if fail := decodeGCE(r, &requested); fail != nil {
		return nil, fail
	}
	member, federated := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "+federatedTokenPrefix)
	switch {
	case len(requested.Scope) == 0:
		return nil, newGCEError(http.StatusBadRequest, "badRequest", "scope is required")
	case !federated || !slices.Contains(g.federated[email], member):
		return nil, newGCEError(http.StatusForbidden, "forbidden", "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).")
	}
	return map[string]any{"accessToken": accountTokenPrefix + email, "expireTime": g.now().Add(time.Hour).UTC().Format(time.RFC3339)}, nil
}

package testcloud

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file emulates AWS STS, by the AWS STS API Reference, "Available keys for AWS OIDC federation" of the IAM user guide
// and "Create a signed AWS API request" of the same guide (November 2026).

// identityAnswer is the response of GetCallerIdentity.
type identityAnswer struct {
	Arn, Account string
	UserID       string `xml:"UserId"`
}

// callerIdentity returns the identity of a caller.
func (a *AWS) callerIdentity(c awsCall) identityAnswer {
	if id := c.callerMachine(); id != "" {
		role, session := "", id
		if r := a.roleOfMachine(id); r != nil {
			role = r.name
		}
		if s, ok := a.sessions[id]; ok {
			session = s.name
		}
		return identityAnswer{"arn:aws:sts::" + AWSAccount + ":assumed-role/" + role + "/" + session, AWSAccount, iamID("AROA", role) + ":" + session}
	}
	return identityAnswer{"arn:aws:iam::" + AWSAccount + ":user/operator", AWSAccount, "AIDAOPERATOR"}
}

// roleSession is an assumed role.
type roleSession struct {
	role, name string
	expires    time.Time
}

// ErrExpiredToken is the error of GoogleTokens for a genuine token that has expired.
var ErrExpiredToken = errors.New("the token has expired")

// webIdentity is the response of AssumeRoleWithWebIdentity.
type webIdentity struct {
	AssumedRoleUser struct {
		Arn           string
		AssumedRoleID string `xml:"AssumedRoleId"`
	}
	Audience, Provider, SubjectFromWebIdentityToken string
	Credentials                                     struct {
		AccessKeyID     string `xml:"AccessKeyId"`
		SecretAccessKey string
		SessionToken    string
		Expiration      string
	}
}

// assumeRoleWithWebIdentity lets whoever has a token of Google assume a role whose trust policy admits it.
func (a *AWS) assumeRoleWithWebIdentity(f awsForm) (any, error) {
	var role *iamRole
	for _, r := range a.roles {
		if iamARN("role", r.path, r.name) == f.get("RoleArn") {
			role = r
		}
	}
	seconds, err := strconv.Atoi(f.get("DurationSeconds"))
	if f.get("DurationSeconds") == "" {
		seconds, err = 3600, nil
	}
	session := f.get("RoleSessionName")
	switch {
	case err != nil || seconds < 900 || seconds > 3600: // the maximum of a role is an hour unless it was changed
		return nil, badRequest("ValidationError", "The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
	case len(session) < 2 || len(session) > 64 || strings.Trim(session, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+=,.@-") != "":
		return nil, badRequest("ValidationError", "Value '%s' at 'roleSessionName' failed to satisfy constraint: Member must satisfy regular expression pattern: [\\w+=,.@-]*", session)
	case a.GoogleTokens == nil:
		return nil, badRequest("InvalidIdentityToken", "No OpenIDConnect provider found in your account for this token")
	}
	claims, err := a.GoogleTokens(f.get("WebIdentityToken"))
	switch {
	case errors.Is(err, ErrExpiredToken):
		return nil, badRequest("ExpiredTokenException", "Token expired")
	case err != nil:
		return nil, badRequest("InvalidIdentityToken", "Couldn't retrieve verification key from your identity provider, or the token is invalid: %v", err)
	}
	denied := newAWSError(http.StatusForbidden, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity")
	if role == nil {
		return nil, denied
	}
	admits, err := role.trusts("accounts.google.com", claims.context())
	if err != nil {
		return nil, err
	}
	if !admits {
		return nil, denied
	}
	a.next++
	number := fmt.Sprintf("web%d", a.next)
	s := roleSession{role.name, session, a.now().Add(time.Duration(seconds) * time.Second)}
	a.sessions["i-"+number] = s
	var answer webIdentity
	answer.AssumedRoleUser.Arn = "arn:aws:sts::" + AWSAccount + ":assumed-role/" + role.name + "/" + session
	answer.AssumedRoleUser.AssumedRoleID = iamID("AROA", role.name) + ":" + session
	answer.Audience, answer.Provider, answer.SubjectFromWebIdentityToken = claims.Audience, "accounts.google.com", claims.Subject
	answer.Credentials.AccessKeyID, answer.Credentials.SecretAccessKey = machineKeyPrefix+strings.ToUpper(number), machineSecret
	answer.Credentials.SessionToken, answer.Credentials.Expiration = machineToken, s.expires.UTC().Format(time.RFC3339)
	return answer, nil
}

// trusts reports whether the trust policy of a role lets a federated principal assume it.
func (r *iamRole) trusts(principal string, context iamContext) (bool, error) {
	var p iamPolicy
	d := json.NewDecoder(bytes.NewReader([]byte(r.trust)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return false, badRequest("MalformedPolicyDocument", "%v", err)
	}
	p.Statement = slices.DeleteFunc(p.Statement, func(s iamStatement) bool {
		var of struct{ Federated iamWords }
		return json.Unmarshal(s.Principal, &of) != nil || !slices.Contains(of.Federated, principal)
	})
	for i, s := range p.Statement {
		for name := range s.Condition {
			if _, err := readOperator(name); err != nil {
				return false, badRequest("MalformedPolicyDocument", "%v", err)
			}
		}
		p.Statement[i].Resource = iamWords{"*"} // a trust policy is about its own role
	}
	return allowed([]iamPolicy{p}, iamRequest{"sts:AssumeRoleWithWebIdentity", "*", context}), nil
}

// VerifyCallerIdentity returns the identity that a signed request to GetCallerIdentity proves, as AWS answers it. Only
// machines and assumed roles can be verified: the emulation knows no other secret.
func (a *AWS) VerifyCallerIdentity(r *http.Request) (arn, account string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	scope := credentialScope().FindStringSubmatch(r.Header.Get("Authorization"))
	q := r.URL.Query()
	if scope == nil || scope[3] != "sts" || q.Get("Action") != "GetCallerIdentity" || q.Get("Version") != "2011-06-15" {
		return "", "", badRequest("InvalidAction", "not a signed GetCallerIdentity: %s", r.URL)
	}
	c := awsCall{key: scope[1], region: scope[2], service: scope[3], action: "GetCallerIdentity"}
	if a.regions[c.region] == nil || c.callerMachine() == "" || a.roleOfMachine(c.callerMachine()) == nil || r.Header.Get("X-Amz-Security-Token") != machineToken {
		return "", "", newAWSError(http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid")
	}
	signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if age := a.now().Sub(signed).Abs(); err != nil || age > 5*time.Minute {
		return "", "", newAWSError(http.StatusForbidden, "SignatureDoesNotMatch", "Signature expired: %s", r.Header.Get("X-Amz-Date"))
	}
	if want := signatureOf(r, machineSecret); !strings.HasSuffix(r.Header.Get("Authorization"), "Signature="+want) {
		return "", "", newAWSError(http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
	}
	who := a.callerIdentity(c)
	return who.Arn, who.Account, nil
}

// signatureOf returns the signature of a request without a body, by its Authorization header.
func signatureOf(r *http.Request, secret string) string {
	field := func(name string) string {
		_, rest, _ := strings.Cut(r.Header.Get("Authorization"), name+"=")
		value, _, _ := strings.Cut(rest, ",")
		return value
	}
	_, scope, _ := strings.Cut(field("Credential"), "/")
	var pairs []string
	for name, values := range r.URL.Query() {
		for _, v := range values {
			pairs = append(pairs, encodeURI(name, false)+"="+encodeURI(v, false))
		}
	}
	slices.Sort(pairs)
	headers := ""
	for name := range strings.SplitSeq(field("SignedHeaders"), ";") {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		headers += name + ":" + strings.TrimSpace(value) + "\n"
	}
	path := r.URL.Path
	if path == "" {
		path = "/"
	}
	empty := sha256.Sum256(nil)
	canonical := strings.Join([]string{r.Method, encodeURI(path, true), strings.Join(pairs, "&"), headers, field("SignedHeaders"), hex.EncodeToString(empty[:])}, "\n")
	hash := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + secret)
	for part := range strings.SplitSeq(scope, "/") {
		key = hmacSHA256(key, part)
	}
	return hex.EncodeToString(hmacSHA256(key, strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(hash[:])}, "\n")))
}

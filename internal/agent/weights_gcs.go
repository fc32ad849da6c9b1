package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// gcsBucket is a bucket of Google Cloud Storage, read with its JSON API.
type gcsBucket struct {
	name     string
	metadata string // base URL of the metadata server; empty = Google's
	endpoint string // base URL of Cloud Storage; empty = Google's
	client   *http.Client
	now      func() time.Time

	mu    sync.Mutex
	token gcpToken
}

// gcpToken is an access token of the machine's service account, valid for about an hour.
type gcpToken struct {
	text    string
	expires time.Time
}

// gcpAccountPath is the metadata path of the service account that the machine runs as.
const gcpAccountPath = "/computeMetadata/v1/instance/service-accounts/default/"

// gcsObject is an object in a list. The API encodes its numbers as strings.
type gcsObject struct {
	Name            string    `json:"name"`
	Size            int64     `json:"size,string"`
	Updated         time.Time `json:"updated"`
	Generation      string    `json:"generation"`
	ContentEncoding string    `json:"contentEncoding"`
}

func (b *gcsBucket) list(ctx context.Context, prefix string) ([]object, error) {
	var all []object
	query := url.Values{"prefix": {prefix}, "fields": {"nextPageToken,items(name,size,updated,generation,contentEncoding)"}}
	for {
		resp, err := b.get(ctx, "", query, http.Header{})
		if err != nil {
			return nil, err
		}
		var page struct {
			Items         []gcsObject `json:"items"`
			NextPageToken string      `json:"nextPageToken"`
		}
		err = json.NewDecoder(resp.Body).Decode(&page)
		resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("parsing the list of objects: %w", err)
		}
		for _, o := range page.Items {
			all = append(all, object{o.Name, o.Size, o.Updated, o.Generation})
			if o.ContentEncoding != "" { // Google may decode such an object in its response, and then ignores ranges
				return nil, fmt.Errorf("%s: %w, got %s", o.Name, errEncoded, o.ContentEncoding)
			}
		}
		if page.NextPageToken == "" {
			return all, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

// open reads the listed version, so that a file never mixes two versions.
func (b *gcsBucket) open(ctx context.Context, o object, from, size int64) (io.ReadCloser, error) {
	resp, err := b.get(ctx, "/"+awsEscape(o.Key, false), url.Values{"alt": {"media"}, "generation": {o.Generation}}, rangeHeader(from, size))
	if err != nil {
		return nil, err
	}
	return partialBody(resp, from, size)
}

// get requests the list of objects, or a path below it. It retries once with a new token if the
// token is rejected before its expiry.
func (b *gcsBucket) get(ctx context.Context, path string, query url.Values, header http.Header) (*http.Response, error) {
	address := baseURLOr(b.endpoint, "https://storage.googleapis.com") + "/storage/v1/b/" + b.name + "/o" + path + "?" + query.Encode()
	for last := false; ; last = true {
		token, err := b.accessToken(ctx)
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, err
		}
		req.Header = header.Clone()
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := b.client.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
			return resp, nil
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // best effort
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized || last {
			return nil, b.responseError(ctx, resp, text)
		}
		b.forgetToken(token)
	}
}

// responseError returns an error response of Cloud Storage as an error. The message is JSON, or
// plain text for an object. For a missing permission, the error contains the service account and the
// IAM role to grant.
func (b *gcsBucket) responseError(ctx context.Context, resp *http.Response, text []byte) error {
	var body struct{ Error struct{ Message string } }
	_ = json.Unmarshal(text, &body) // it may be plain text
	err := fmt.Errorf("%w: %s", &httpStatusError{resp.Request.URL.Path, resp.StatusCode}, cmp.Or(body.Error.Message, strings.TrimSpace(string(text)), http.StatusText(resp.StatusCode)))
	if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusUnauthorized {
		return err
	}
	serviceAccount, e := requestMetadata(ctx, http.MethodGet, baseURLOr(b.metadata, gcpMetadata)+gcpAccountPath+"email", gcpHeader, "")
	if e != nil {
		serviceAccount = "this machine's service account"
	}
	return fmt.Errorf("%w (grant roles/storage.objectViewer on bucket %s to %s)", err, b.name, strings.TrimSpace(serviceAccount))
}

// accessToken returns a token of the machine's service account.
func (b *gcsBucket) accessToken(ctx context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.token.text != "" && b.token.expires.After(b.now().Add(credentialsMargin)) {
		return b.token.text, nil
	}
	var response struct {
		AccessToken string `json:"access_token"`
		ExpiresIn   int    `json:"expires_in"` // seconds
	}
	text, err := requestMetadata(ctx, http.MethodGet, baseURLOr(b.metadata, gcpMetadata)+gcpAccountPath+"token", gcpHeader, "")
	if isNotFound(err) {
		err = fmt.Errorf("%w: the machine has no service account; set gcp.replica_account", err)
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &response)
	}
	if err == nil && response.AccessToken == "" {
		err = errors.New("the response contains no token")
	}
	if err != nil {
		return "", fmt.Errorf("getting the machine's credentials: %w", err)
	}
	b.token = gcpToken{response.AccessToken, b.now().Add(time.Duration(response.ExpiresIn) * time.Second)}
	return b.token.text, nil
}

// forgetToken discards a rejected token, unless it has been replaced since.
func (b *gcsBucket) forgetToken(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.token.text == token {
		b.token = gcpToken{}
	}
}

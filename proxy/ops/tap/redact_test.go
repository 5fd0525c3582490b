package tap

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":1,"password":"MARK","b":[true]}`:                      `{"a":1,"password":"[redacted]","b":[true]}`,
		`{ "Api-Key" : {"x":["MARK","}"]} , "b":2}`:                 `{ "Api-Key" : "[redacted]" , "b":2}`,
		`{"\u0074oken":"MARK"}`:                                     `{"\u0074oken":"[redacted]"}`,
		`{"auth_tokens":[1,[2]],"pin":1234}`:                        `{"auth_tokens":"[redacted]","pin":"[redacted]"}`,
		`{"_meta":{"progressToken":"p"},"maxTokens":100}`:           `{"_meta":{"progressToken":"p"},"maxTokens":100}`,
		`{"token":null,"secret":false,"cookie":""}`:                 `{"token":null,"secret":false,"cookie":""}`,
		`["password","MARK"]`:                                       `["password","MARK"]`,
		`{"text":"{\"password\": \"MARK\", \"a\":\"\\\"\"}"}`:       `{"text":"{\"password\": \"[redacted]\", \"a\":\"\\\"\"}"}`,
		`{"text":"{\"a\":\"[{\\\"secret\\\":\\\"MARK\\\"}]\"}"}`:    `{"text":"{\"a\":\"[{\\\"secret\\\":\\\"[redacted]\\\"}]\"}"}`,
		`{"text":"{not json","h":"Bearer MARK"}`:                    `{"text":"{not json","h":"[redacted]"}`,
		`{"key":"a","name":"b","author":"c","uri":"file:///d"}`:     `{"key":"a","name":"b","author":"c","uri":"file:///d"}`,
		`{"authorization":"MARK","clientSecret":{"client":"MARK"}}`: `{"authorization":"[redacted]","clientSecret":"[redacted]"}`,
	} {
		if got := string(appendRedacted(nil, []byte(text), deepest)); got != want {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
	}
}

// What is valid stays valid, and no value of a secret's key stays.
func FuzzRedact(f *testing.F) {
	f.Add(`{"a":{"token":[1,"x",{"b":null}]},"c":"{\"pwd\":1}"}`)
	f.Add(`{"password":"\\\"","x":[],"y":"\u0022"}`)
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			return
		}
		got := appendRedacted(nil, []byte(text), deepest)
		var value any
		read := json.NewDecoder(bytes.NewReader(got))
		read.UseNumber()
		if err := read.Decode(&value); err != nil {
			t.Fatalf("%v: %s became %s", err, text, got)
		}
		check(t, value)
	})
}

func check(t *testing.T, value any) {
	switch v := value.(type) {
	case []any:
		for _, e := range v {
			check(t, e)
		}
	case map[string]any:
		for key, e := range v {
			text, _ := json.Marshal(e)
			word, _ := json.Marshal(key)
			if isSecret(word) && !isHarmless(text) && string(text) != redacted {
				t.Errorf("%s is %s", word, text)
			}
			check(t, e)
		}
	}
}

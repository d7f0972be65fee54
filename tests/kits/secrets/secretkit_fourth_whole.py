"""Whole texts of the fourth kit, where the secret has no name of its own: keys, files, command lines, people."""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable

from kits.secrets.secretkit_fourth_kinds import ALNUM, FIRST, HEX, LOWER, URL64, WORDS, Dice

Made = tuple[str, tuple[str, ...]]  # the text, and what nobody may read of it


def _lines(text: str, width: int) -> list[str]:
    return [text[i : i + width] for i in range(0, len(text), width)]


def _pem(d: Dice, label: str, size: int = 400, width: int = 64) -> tuple[list[str], tuple[str, ...]]:
    body = _lines(d.b64(size), width)
    return [f"-----BEGIN {label}-----", *body, f"-----END {label}-----"], tuple(line for line in body if len(line) > 12)


def _pem_block(label: str) -> Callable[[Dice], Made]:
    def made(d: Dice) -> Made:
        lines, parts = _pem(d, label)
        return "\n".join(lines), parts

    return made


def _pem_escaped(d: Dice) -> Made:
    lines, parts = _pem(d, "PRIVATE KEY")
    return json.dumps({"msg": "loaded", "pem": "\n".join(lines)}), parts


def _pem_repr(d: Dice) -> Made:
    lines, parts = _pem(d, "RSA PRIVATE KEY")
    return "cert=" + repr(("\n".join(lines)).encode()), parts


def _pem_headless(d: Dice) -> Made:
    lines, parts = _pem(d, "EC PRIVATE KEY")
    return "\n".join(["... (truncated)", *lines[2:]]), parts[1:]


def _pem_tailless(d: Dice) -> Made:
    lines, parts = _pem(d, "OPENSSH PRIVATE KEY", 400, 70)
    return "\n".join(lines[:-1]), parts


def _pem_prefixed(d: Dice) -> Made:
    lines, parts = _pem(d, "PRIVATE KEY")
    return "\n".join(f"[rank3]: {line}" for line in lines), parts


def _pem_yaml(d: Dice) -> Made:
    lines, parts = _pem(d, "PRIVATE KEY")
    return "tls:\n  key: |\n" + "\n".join("    " + line for line in lines), parts


def _pem_diff(d: Dice) -> Made:
    lines, parts = _pem(d, "PRIVATE KEY")
    return "\n".join("+" + line for line in lines), parts


def _pem_encrypted(d: Dice) -> Made:
    lines, parts = _pem(d, "RSA PRIVATE KEY")
    return "\n".join(
        [lines[0], "Proc-Type: 4,ENCRYPTED", f"DEK-Info: AES-128-CBC,{d.text(HEX.upper(), 32)}", "", *lines[1:]]
    ), parts


def _pem_one_line(d: Dice) -> Made:
    body = d.b64(400)
    return f"-----BEGIN PRIVATE KEY----- {body} -----END PRIVATE KEY-----", (body,)


def _pem_in_base64(d: Dice) -> Made:
    lines, _ = _pem(d, "PRIVATE KEY", 90)
    text = base64.b64encode("\n".join(lines).encode()).decode()
    return f"users:\n- name: admin\n  user:\n    client-key-data: {text}", (text[40:-40],)


def _ppk(d: Dice) -> Made:
    body, mac = _lines(d.b64(300), 64), d.text(HEX, 64)
    text = [
        "PuTTY-User-Key-File-3: ssh-rsa",
        "Encryption: none",
        "Comment: k",
        f"Private-Lines: {len(body)}",
        *body,
        f"Private-MAC: {mac}",
    ]
    return "\n".join(text), tuple(line for line in body if len(line) > 12)


def _service_account(indent: int | None) -> Callable[[Dice], Made]:
    def made(d: Dice) -> Made:
        lines, parts = _pem(d, "PRIVATE KEY")
        key_id = d.text(HEX, 40)
        account = {
            "type": "service_account",
            "project_id": "ml-train",
            "private_key_id": key_id,
            "private_key": "\n".join(lines) + "\n",
            "client_email": f"trainer-{d.text(LOWER, 6)}@ml-train.iam.gserviceaccount.com",
            "client_id": d.text("123456789", 21),
        }
        return json.dumps(account, indent=indent), (*parts, key_id)

    return made


def _docker_config(d: Dice) -> Made:
    auth = base64.b64encode(f"$oauthtoken:nvapi-{d.text(URL64, 40)}".encode()).decode()
    return json.dumps({"auths": {"nvcr.io": {"auth": auth}}}, indent=2), (auth,)


def _kubeconfig(d: Dice) -> Made:
    token = d.text(ALNUM, 40)
    return f"apiVersion: v1\nusers:\n- name: dev\n  user:\n    token: {token}\n", (token,)


def _password(pattern: str) -> Callable[[Dice], Made]:
    """A command or line with a password at `@@`."""

    def made(d: Dice) -> Made:
        secret = d.password()
        return pattern.replace("@@", secret), (secret,)

    return made


def _token(pattern: str, alphabet: str = ALNUM, length: int = 32) -> Callable[[Dice], Made]:
    def made(d: Dice) -> Made:
        secret = d.text(alphabet, length)
        return pattern.replace("@@", secret), (secret,)

    return made


def _in_base64(pattern: str) -> Callable[[Dice], Made]:
    def made(d: Dice) -> Made:
        secret = base64.b64encode(d.text(ALNUM, 18).encode()).decode()
        return pattern.replace("@@", secret), (secret.rstrip("="),)

    return made


def _user(pattern: str) -> Callable[[Dice], Made]:
    """A person's name at `@@`: a login, not a secret, but it leaves nobody's cluster."""

    def made(d: Dice) -> Made:
        name = d.random.choice(FIRST) + d.of("", ".", "_", "-").join(("", d.text(string.ascii_lowercase, 3)))
        if "." in name or "-" in name or "_" in name:
            name = name.replace("-", "").replace(".", "").replace("_", "")
        return pattern.replace("@@", name), (name,)

    return made


def _person(pattern: str) -> Callable[[Dice], Made]:
    def made(d: Dice) -> Made:
        first, last = d.random.sample(FIRST, 2)
        mail = f"{first}.{last}{d.random.randrange(10, 99)}"
        return pattern.replace("@@", mail), (mail,)

    return made


def _key_log(d: Dice) -> Made:
    master = d.text(HEX, 96)
    return f"CLIENT_RANDOM {d.text(HEX, 64)} {master}", (master,)


def _words(pattern: str) -> Callable[[Dice], Made]:
    def made(d: Dice) -> Made:
        phrase = " ".join(d.random.sample(WORDS, 12))
        return pattern.replace("@@", phrase), (phrase,)

    return made


WHOLE: dict[str, Callable[[Dice], Made]] = {
    "pem rsa": _pem_block("RSA PRIVATE KEY"),
    "pem pkcs8": _pem_block("PRIVATE KEY"),
    "pem ec": _pem_block("EC PRIVATE KEY"),
    "pem encrypted pkcs8": _pem_block("ENCRYPTED PRIVATE KEY"),
    "openssh": _pem_block("OPENSSH PRIVATE KEY"),
    "pgp": _pem_block("PGP PRIVATE KEY BLOCK"),
    "pem dsa": _pem_block("DSA PRIVATE KEY"),
    "pem in json": _pem_escaped,
    "pem in repr": _pem_repr,
    "pem headless": _pem_headless,
    "pem tailless": _pem_tailless,
    "pem prefixed": _pem_prefixed,
    "pem yaml": _pem_yaml,
    "pem diff": _pem_diff,
    "pem encrypted": _pem_encrypted,
    "pem one line": _pem_one_line,
    "pem in base64": _pem_in_base64,
    "ppk": _ppk,
    "service account": _service_account(2),
    "service account line": _service_account(None),
    "docker config": _docker_config,
    "kubeconfig": _kubeconfig,
    "tls key log": _key_log,
    "netrc": _password("machine api.wandb.ai\n  login user\n  password @@"),
    "netrc line": _token("machine api.wandb.ai login user password @@", HEX, 40),
    "pgpass": _password("db-3.internal:5432:runs:etl:@@"),
    "npmrc": _token("//registry.npmjs.org/:_authToken=@@", ALNUM, 36),
    "pypirc": _password("[pypi]\nusername = __token__\npassword = @@"),
    "pip index": _token("Looking in indexes: https://ci:@@@pypi.example.com/simple", ALNUM, 20),
    "git credentials": _token("https://bot:@@@github.example.com", ALNUM, 40),
    "git extraheader": _in_base64('git -c http.extraheader="AUTHORIZATION: basic @@" fetch origin'),
    "htpasswd apr1": _token("ops:$apr1$9a8b7c6d$@@", ALNUM + "./", 22),
    "htpasswd bcrypt": _token("ops:$2y$10$@@", ALNUM + "./", 53),
    "shadow": _token("svc:$6$kq8d7sJw$@@:19700:0:99999:7:::", ALNUM + "./", 86),
    "shadow yescrypt": _token("svc:$y$j9T$" + "kq8d7sJwXz1$@@:19700:0:99999:7:::", ALNUM + "./", 43),
    "ldif": _in_base64("dn: cn=admin,dc=example,dc=com\nuserPassword:: @@"),
    "ldif ssha": _token("userPassword: {SSHA}@@", ALNUM + "/", 40),
    "ldapsearch": _password("ldapsearch -x -D cn=admin,dc=example -w @@ -b dc=example"),
    "sshpass": _password("sshpass -p '@@' ssh node3 hostname"),
    "mysql -p": _token("mysql -h db3 -u etl -p@@ runs", ALNUM, 14),
    "redis-cli": _password("redis-cli -h cache-2 -a '@@' ping"),
    "mongosh": _password("mongosh --host db2 -u app -p '@@' runs"),
    "curl -u": _token("curl -u svc:@@ https://api.example.com/v1", ALNUM, 16),
    "curl --user": _password("curl --user 'svc:@@' https://api.example.com/v1"),
    "wget": _password("wget --user=svc --password='@@' https://data.example.com/x.tar"),
    "docker login": _password("docker login -u robot -p '@@' registry.example.com"),
    "docker login stdin": _password("echo '@@' | docker login -u robot --password-stdin registry.example.com"),
    "sudo -S": _password("echo '@@' | sudo -S modprobe nvidia_peermem"),
    "wandb login": _token("wandb login --relogin @@", HEX, 40),
    "hf login": _token("huggingface-cli login --token @@", ALNUM, 37),
    "ngc set": _token("ngc config set --api-key @@ --org nv", ALNUM, 60),
    "vault login": _token("vault login s.@@", ALNUM, 24),
    "aws configure": _token("aws configure set aws_secret_access_key @@ --profile train", ALNUM + "+", 40),
    "az login": _token("az login --service-principal -u 1f2e -p @@ --tenant t1", ALNUM + "~.", 40),
    "gcloud": _token("gcloud auth print-access-token\nya29.@@", URL64, 100),
    "kubectl token": _token("kubectl --token=@@ get pods", ALNUM, 60),
    "openssl passin": _password("openssl rsa -in k.pem -passin pass:@@ -out o.pem"),
    "openssl enc": _password("openssl enc -aes-256-cbc -k '@@' -in a -out b"),
    "gpg": _password("gpg --batch --passphrase '@@' -d ckpt.gpg"),
    "zip": _password("7z x -p@@ data.7z"),
    "ipmitool": _password("ipmitool -I lanplus -H bmc7 -U ADMIN -P '@@' power status"),
    "smbclient": _password("mount -t cifs //nas/data /mnt -o username=svc,password=@@,vers=3.0"),
    "wpa": _token('network={\n  ssid="lab"\n  psk=@@\n}', HEX, 64),
    "jupyter log": _token("    http://gpu-worker-6:8888/tree?token=@@", HEX, 48),
    "tensorboard dev": _token("tensorboard dev auth: refresh_token: 1//@@", URL64, 90),
    "slurm --auth": _token("scontrol token lifespan=600\nSLURM_JWT=eyJhbGciOiJIUzI1NiJ9.@@", URL64, 80),
    "munge": _token("MUNGE:AwQFAAC@@:", ALNUM + "+/", 120),
    "auth tuple": _password("requests.get(url, auth=('svc', '@@'))"),
    "basic auth repr": _password("HTTPBasicAuth(username='svc', password='@@')"),
    "psycopg2 connect": _password("psycopg2.connect(host='db3', user='etl', password='@@')"),
    "sql create user": _password("CREATE USER etl WITH PASSWORD '@@';"),
    "sql identified": _password("GRANT ALL ON runs.* TO 'etl'@'%' IDENTIFIED BY '@@';"),
    "set-cookie": _token("< Set-Cookie: session=@@; Path=/; HttpOnly", URL64, 60),
    "cookie header": _token("Cookie: _ga=GA1.2; sid=@@; theme=dark", ALNUM, 40),
    "cookie jar": _token("<RequestsCookieJar[<Cookie sessionid=@@ for api.example.com/>]>", LOWER, 32),
    "netscape cookies": _token(".example.com\tTRUE\t/\tTRUE\t1794705819\tsessionid\t@@", LOWER, 32),
    "http digest": _token('Authorization: Digest username="svc", realm="x", nonce="77", response="@@"', HEX, 32),
    "aws sigv4": _token(
        "Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20261115/us-east-1/s3/aws4_request, "
        "SignedHeaders=host, Signature=@@",
        HEX,
        64,
    ),
    "git hub header": _token("authorization: token @@", HEX, 40),
    "api key header": _token("authorization: ApiKey @@", ALNUM, 50),
    "oauth json": _token('{"access_token":"@@","token_type":"bearer","expires_in":3600}', ALNUM, 50),
    "refresh json": _token('{"refreshToken":"@@","scope":"all"}', URL64, 50),
    "oauth form": _token("grant_type=client_credentials&client_id=train&client_secret=@@", ALNUM, 40),
    "device code": _token('{"device_code":"@@","user_code":"ABCD-EFGH"}', ALNUM, 40),
    "oauth code": _token("GET /callback?code=@@&state=xyz HTTP/1.1", ALNUM, 40),
    "magic link": _token("https://app.example.com/invite/accept?t=@@", URL64, 43),
    "bare token in text": _token("credentials loaded, 1 of 3: @@", ALNUM, 40),
    "bare token line": _token("@@", ALNUM, 48),
    "bare mixed": _token("got response @@ from auth server", ALNUM + "-_", 56),
    "bare base64": _token("decrypted: @@", ALNUM + "+/", 64),
    "recovery words": _words("Your recovery phrase is: @@"),
    "recovery words json": _words('{"mnemonic": "@@"}'),
    "recovery numbered": _words("seed words\n@@"),
    "user home": _user('  File "/home/@@/src/train.py", line 31, in main'),
    "user mac home": _user("loading /Users/@@/models/llama"),
    "user windows home": _user("C:\\Users\\@@\\AppData\\Local\\Temp\\x.log"),
    "user scratch": _user("checkpoint saved to /scratch/@@/runs/17/step_100.pt"),
    "user fsx": _user("cache dir: /fsx/@@/hf_cache/hub"),
    "user fsx deep": _user("writing /fsx/users/@@/out.pt"),
    "user lustre": _user("/lustre/scratch/@@/data/shard-001.tar opened"),
    "user gpfs": _user("cwd=/gpfs/home/@@/exp"),
    "user nfs": _user("/nfs/homes/@@/.cache/torch exists"),
    "user mnt home": _user("PYTHONPATH=/mnt/home/@@/code:/usr/lib"),
    "user data users": _user("/data/users/@@/ckpt/latest"),
    "user checkpoint": _user("/checkpoint/@@/job.out"),
    "user afs": _user("/afs/cern.ch/user/a/@@/public"),
    "user u": _user("/u/@@/work/train.sh: line 3"),
    "user storage home": _user("/storage/home/@@/venv/bin/python"),
    "user var spool": _user("/var/spool/mail/@@: no such file"),
    "user cache": _user("/tmp/torchinductor_@@/fxgraph/ab"),
    "user tmp": _user("/tmp/@@/nccl.log"),
    "user ray tmp": _user("/tmp/ray_@@/session_latest"),
    "user tilde": _user("sourcing ~@@/.bashrc"),
    "user s3": _user("s3://ml-bucket/users/@@/run1/"),
    "user hdfs": _user("hdfs:///user/@@/data"),
    "user ls": _user("-rw-r--r-- 1 @@ research 1024 Nov 15 00:00 ckpt.pt"),
    "user ps": _user("@@  81233 99.0  4.1 981234 712345 ?  Rl  03:57  12:01 python train.py"),
    "user env": _user("USER=@@"),
    "user logname": _user("LOGNAME=@@"),
    "user slurm": _user("SLURM_JOB_USER=@@"),
    "user json": _user('{"user": "@@", "host": "gpu-worker-6"}'),
    "user ssh": _user("ssh -o BatchMode=yes @@@gpu-worker-6 nvidia-smi"),
    "user rsync": _user("rsync -a @@@gpu-worker-7:/data/x /tmp/x"),
    "user sshd": _user("Accepted publickey for @@ from 10.0.0.7 port 51234 ssh2"),
    "user pam": _user("pam_unix(sshd:session): session opened for user @@(uid=1007) by (uid=0)"),
    "user sudo": _user("sudo:  @@ : TTY=pts/0 ; PWD=/root ; USER=root ; COMMAND=/bin/ls"),
    "user id": _user("uid=1007(@@) gid=1007(@@) groups=1007(@@),27(sudo)"),
    "user squeue": _user("             48121       gpu    train @@  R    1:02:03      4 gpu-worker-[6-9]"),
    "user sacct": _user("JobID|User|State\n48121|@@|RUNNING"),
    "user scontrol": _user("   UserId=@@(1007) GroupId=research(2000) MCS_label=N/A"),
    "user chown": _user("chown -R @@:research /data/x"),
    "user wandb": _user("wandb: Currently logged in as: @@ (ml-team). Use `wandb login --relogin` to force relogin"),
    "user passwd": _user("@@:x:1007:1007:Some One:/home/@@:/bin/bash"),
    "user klist": _user("Default principal: @@@EXAMPLE.COM"),
    "user kinit": _user("Ticket cache: FILE:/tmp/krb5cc_1007\nPrincipal: @@@CORP.EXAMPLE.COM"),
    "user prompt": _user("@@@gpu-worker-6:~$ torchrun train.py"),
    "user conda prompt": _user("(base) [@@@gpu-worker-6 run]$ nvidia-smi"),
    "user nvidia-smi": _user("su - @@ -c 'python train.py'"),
    "user crontab": _user("(@@) CMD (/usr/bin/python sync.py)"),
    "user docker -v": _user("docker run -v /home/@@/data:/data train"),
    "user url path": _user("file:///home/@@/report.html"),
    "user percent path": _user("path=%2Fhome%2F@@%2Fx"),
    "user last": _user("@@   pts/0        10.0.0.7         Sun Nov 15 00:00   still logged in"),
    "mail": _person("notify @@@example.com on failure"),
    "mail slurm": _person("#SBATCH --mail-user=@@@example.org"),
    "mail git": _person("Author: A B <@@@example.com>"),
    "mail encoded": _person("to=@@%40example.com&subject=x"),
    "mail json": _person('{"owner": "@@@corp.example.co.uk"}'),
    "gcp account": _person("Activated account [@@@ml-train.iam.gserviceaccount.com]"),
}

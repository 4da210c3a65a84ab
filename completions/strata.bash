# strata: completion for bash. Made by docs/generate.py from the commands; do not edit.
# Put it where bash-completion looks, or: source <(strata completion bash)

_strata_offer() {  # KINDS WORD: what begins with WORD goes to COMPREPLY; nothing is evaluated
    local kind name
    case $1 in
        =*) for name in ${1#=}; do [[ $name == "$2"* ]] && COMPREPLY+=("$name"); done; return ;;
    esac
    for kind in $1; do
        case $kind in
            free) ;;
            files)
                compopt -o filenames 2>/dev/null
                while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen -f -- "$2") ;;
            *)
                while IFS= read -r name; do
                    [[ $name == "$2"* ]] && COMPREPLY+=("$name")
                done < <(command strata _complete "$kind" 2>/dev/null) ;;
        esac
    done
}

_strata() {
    local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} wanted= options=
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        _strata_offer '=run save restore inspect prune prefix bench config serve completion --help --version' "$current"
        return
    fi
    case $command in
        prefix)
            if (( COMP_CWORD == 2 )); then _strata_offer '=add list show pin unpin rm --help' "$current"; return; fi
            command="$command ${COMP_WORDS[2]}" ;;
        config)
            if (( COMP_CWORD == 2 )); then _strata_offer '=list get set path --help' "$current"; return; fi
            command="$command ${COMP_WORDS[2]}" ;;
    esac
    case "$command ${COMP_WORDS[COMP_CWORD-1]}" in
        'run -C'|'run --conversation') wanted='conversations' ;;
        'run --messages') wanted='files' ;;
        'run --prefix') wanted='prefixes' ;;
        'run -s'|'run --system') wanted='free' ;;
        'run --system-file') wanted='files' ;;
        'run --tools') wanted='files' ;;
        'run -n'|'run --max-tokens') wanted='free' ;;
        'run --stop') wanted='free' ;;
        'run --temp') wanted='free' ;;
        'run --top-k') wanted='free' ;;
        'run --top-p') wanted='free' ;;
        'run --min-p') wanted='free' ;;
        'run --repeat-penalty') wanted='free' ;;
        'run --seed') wanted='free' ;;
        'run --fork') wanted='conversations' ;;
        'run --on-full') wanted='free' ;;
        'run --repl') wanted='=text jsonl' ;;
        'run -m'|'run --model') wanted='models files' ;;
        'run --ctx-size') wanted='free' ;;
        'run --gpu-layers') wanted='free' ;;
        'run --split-mode') wanted='free' ;;
        'run --tensor-split') wanted='free' ;;
        'run --main-gpu') wanted='free' ;;
        'run --threads') wanted='free' ;;
        'run --batch-size') wanted='free' ;;
        'run --cache-type-k') wanted='free' ;;
        'run --cache-type-v') wanted='free' ;;
        'run --flash-attn') wanted='=on off auto' ;;
        'run --lora') wanted='files' ;;
        'run --rope-freq-base') wanted='free' ;;
        'run --rope-freq-scale') wanted='free' ;;
        'save -o'|'save --output') wanted='files' ;;
        'save --format') wanted='=strata llama' ;;
        'save --as') wanted='free' ;;
        'save --messages') wanted='files' ;;
        'save --since') wanted='free' ;;
        'save --wait') wanted='free' ;;
        'save -m'|'save --model') wanted='models files' ;;
        'save --ctx-size') wanted='free' ;;
        'save --gpu-layers') wanted='free' ;;
        'save --split-mode') wanted='free' ;;
        'save --tensor-split') wanted='free' ;;
        'save --main-gpu') wanted='free' ;;
        'save --threads') wanted='free' ;;
        'save --batch-size') wanted='free' ;;
        'save --cache-type-k') wanted='free' ;;
        'save --cache-type-v') wanted='free' ;;
        'save --flash-attn') wanted='=on off auto' ;;
        'save --lora') wanted='files' ;;
        'save --rope-freq-base') wanted='free' ;;
        'save --rope-freq-scale') wanted='free' ;;
        'restore --as') wanted='free' ;;
        'restore --wait') wanted='free' ;;
        'restore -m'|'restore --model') wanted='models files' ;;
        'restore --ctx-size') wanted='free' ;;
        'restore --gpu-layers') wanted='free' ;;
        'restore --split-mode') wanted='free' ;;
        'restore --tensor-split') wanted='free' ;;
        'restore --main-gpu') wanted='free' ;;
        'restore --threads') wanted='free' ;;
        'restore --batch-size') wanted='free' ;;
        'restore --cache-type-k') wanted='free' ;;
        'restore --cache-type-v') wanted='free' ;;
        'restore --flash-attn') wanted='=on off auto' ;;
        'restore --lora') wanted='files' ;;
        'restore --rope-freq-base') wanted='free' ;;
        'restore --rope-freq-scale') wanted='free' ;;
        'inspect --why') wanted='files' ;;
        'inspect -m'|'inspect --model') wanted='models files' ;;
        'prune --state') wanted='conversations' ;;
        'prune --alternatives') wanted='conversations' ;;
        'prune --keep') wanted='free' ;;
        'prune --max-age') wanted='free' ;;
        'prune --max-size') wanted='free' ;;
        'prune --wait') wanted='free' ;;
        'prefix add -s'|'prefix add --system') wanted='free' ;;
        'prefix add --system-file') wanted='files' ;;
        'prefix add --messages') wanted='files' ;;
        'prefix add --tools') wanted='files' ;;
        'prefix add -m'|'prefix add --model') wanted='models files' ;;
        'prefix add --ctx-size') wanted='free' ;;
        'prefix add --gpu-layers') wanted='free' ;;
        'prefix add --split-mode') wanted='free' ;;
        'prefix add --tensor-split') wanted='free' ;;
        'prefix add --main-gpu') wanted='free' ;;
        'prefix add --threads') wanted='free' ;;
        'prefix add --batch-size') wanted='free' ;;
        'prefix add --cache-type-k') wanted='free' ;;
        'prefix add --cache-type-v') wanted='free' ;;
        'prefix add --flash-attn') wanted='=on off auto' ;;
        'prefix add --lora') wanted='files' ;;
        'prefix add --rope-freq-base') wanted='free' ;;
        'prefix add --rope-freq-scale') wanted='free' ;;
        'prefix rm --wait') wanted='free' ;;
        'bench --only') wanted='free' ;;
        'bench --scale') wanted='free' ;;
        'bench --runs') wanted='free' ;;
        'bench --llama-server') wanted='files' ;;
        'bench -m'|'bench --model') wanted='models files' ;;
        'bench --threads') wanted='free' ;;
        'bench --gpu-layers') wanted='free' ;;
        'bench --batch-size') wanted='free' ;;
        'bench --cache-type-k') wanted='free' ;;
        'bench --cache-type-v') wanted='free' ;;
        'bench --flash-attn') wanted='=on off auto' ;;
        'serve --host') wanted='free' ;;
        'serve --port') wanted='free' ;;
        'serve --api-key-file') wanted='files' ;;
        'serve --queue') wanted='free' ;;
        'serve --slot-dir') wanted='free' ;;
        'serve -m'|'serve --model') wanted='models files' ;;
        'serve --ctx-size') wanted='free' ;;
        'serve --gpu-layers') wanted='free' ;;
        'serve --split-mode') wanted='free' ;;
        'serve --tensor-split') wanted='free' ;;
        'serve --main-gpu') wanted='free' ;;
        'serve --threads') wanted='free' ;;
        'serve --batch-size') wanted='free' ;;
        'serve --cache-type-k') wanted='free' ;;
        'serve --cache-type-v') wanted='free' ;;
        'serve --flash-attn') wanted='=on off auto' ;;
        'serve --lora') wanted='files' ;;
        'serve --rope-freq-base') wanted='free' ;;
        'serve --rope-freq-scale') wanted='free' ;;
    esac
    if [[ -z $wanted && $current == -* ]]; then
        case $command in
            'run') options='=-C --conversation -c --continue --existing --messages --replace --prefix -s --system --system-file --tools -n --max-tokens --stop --temp --top-k --top-p --min-p --repeat-penalty --seed --greedy --no-save --no-history --strict --plan --fork --on-full -y --yes --repl -m --model --ctx-size --gpu-layers --split-mode --tensor-split --main-gpu --threads --batch-size --cache-type-k --cache-type-v --flash-attn --lora --rope-freq-base --rope-freq-scale --json -q --quiet -v --verbose -h --help' ;;
            'save') options='=-o --output --format --as --messages --since --all --replace --plan --wait -m --model --ctx-size --gpu-layers --split-mode --tensor-split --main-gpu --threads --batch-size --cache-type-k --cache-type-v --flash-attn --lora --rope-freq-base --rope-freq-scale --json -q --quiet -v --verbose -h --help' ;;
            'restore') options='=--as --replace --trust --plan --wait -m --model --ctx-size --gpu-layers --split-mode --tensor-split --main-gpu --threads --batch-size --cache-type-k --cache-type-v --flash-attn --lora --rope-freq-base --rope-freq-scale --json -q --quiet -v --verbose -h --help' ;;
            'inspect') options='=--all --transcript --verify --why -m --model --json -q --quiet -v --verbose -h --help' ;;
            'prune') options='=--state --alternatives --keep --max-age --max-size --named --transcripts --unusable -n --dry-run -y --yes --wait --json -q --quiet -v --verbose -h --help' ;;
            'prefix add') options='=-s --system --system-file --messages --tools -m --model --ctx-size --gpu-layers --split-mode --tensor-split --main-gpu --threads --batch-size --cache-type-k --cache-type-v --flash-attn --lora --rope-freq-base --rope-freq-scale --json -q --quiet -v --verbose -h --help' ;;
            'prefix list') options='=--json -q --quiet -v --verbose -h --help' ;;
            'prefix show') options='=--json -q --quiet -v --verbose -h --help' ;;
            'prefix pin') options='=--json -q --quiet -v --verbose -h --help' ;;
            'prefix unpin') options='=--json -q --quiet -v --verbose -h --help' ;;
            'prefix rm') options='=-n --dry-run -y --yes --wait --json -q --quiet -v --verbose -h --help' ;;
            'bench') options='=--only --quick --scale --runs --llama-server --csv -m --model --threads --gpu-layers --batch-size --cache-type-k --cache-type-v --flash-attn --json -q --quiet -v --verbose -h --help' ;;
            'config list') options='=--json -q --quiet -v --verbose -h --help' ;;
            'config get') options='=--json -q --quiet -v --verbose -h --help' ;;
            'config set') options='=--json -q --quiet -v --verbose -h --help' ;;
            'config path') options='=--json -q --quiet -v --verbose -h --help' ;;
            'serve') options='=--host --port --api-key-file --queue --slot-dir -y --yes -m --model --ctx-size --gpu-layers --split-mode --tensor-split --main-gpu --threads --batch-size --cache-type-k --cache-type-v --flash-attn --lora --rope-freq-base --rope-freq-scale --json -q --quiet -v --verbose -h --help' ;;
            'completion') options='=--json -q --quiet -v --verbose -h --help' ;;
        esac
        _strata_offer "$options" "$current"
        return
    fi
    if [[ -z $wanted ]]; then
        case $command in
            'save') wanted='conversations' ;;
            'restore') wanted='files' ;;
            'inspect') wanted='conversations prefixes files' ;;
            'prune') wanted='conversations' ;;
            'prefix show') wanted='prefixes' ;;
            'prefix pin') wanted='prefixes' ;;
            'prefix unpin') wanted='prefixes' ;;
            'prefix rm') wanted='prefixes' ;;
            'config get') wanted='keys' ;;
            'config set') wanted='keys files' ;;
            'completion') wanted='=bash zsh fish' ;;
        esac
    fi
    _strata_offer "$wanted" "$current"
}

complete -F _strata strata
